CONFIG_FILE="./torchtitan/models/llama3/train_configs/llama3_8b.toml" NGPU=8 LOG_RANK=0 \
./run_train.sh --training.steps 100 --training.local_batch_size 2 --training.seq_len 8192 \
  --metrics.log_freq 1 --metrics.enable_wandb --no-profiling.enable_profiling \
  --optimizer.lr 1e-4 --lr_scheduler.warmup_steps 10 --checkpoint.no-enable \
  --parallelism.tensor_parallel_degree 2 --compile.enable --job.dump_folder ./out \
  --activation_checkpoint.mode full
