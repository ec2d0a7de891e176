CONFIG_FILE=./x.toml ./run_train.sh --model.name llama3 --model.flavor 8B --training.local_batch_size 2 \
  --training.seq_len 8192 --parallelism.enable_compiled_autograd --compile.enable --compile.backend eager \
  --parallelism.pipeline_parallel_degree 2 --activation_checkpoint.mode selective \
  --activation_checkpoint.selective_ac_option op --quantize.linear.float8.recipe_name rowwise
