NGPU=8 CONFIG_FILE=./torchtitan/models/llama3/train_configs/llama3_8b.toml ./run_train.sh \
 --compile.enable --model.converters=quantize.linear.float8 \
 --quantize.linear.float8.enable_fsdp_float8_all_gather \
 --quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp \
 --quantize.linear.float8.filter_fqns=output --training.steps 3000 --training.dataset c4 \
 --checkpoint.no-enable_first_step_checkpoint --training.local_batch_size=2
