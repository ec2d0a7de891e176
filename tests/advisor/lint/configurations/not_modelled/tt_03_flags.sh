torchrun --nproc_per_node=8 -m torchtitan.train --module qwen3 --config qwen3_8b \
  --training.local-batch-size 2 --training.seq-len 8192 --training.enable-cpu-offload \
  --training.mixed-precision-reduce bfloat16 --parallelism.spmd-backend full_dtensor \
  --parallelism.enable-fsdp-symm-mem --compile.enable --compile.backend aot_eager \
  activation_checkpoint:memory-budget --activation-checkpoint.memory-budget 0.5
