#!/bin/bash
#SBATCH -N 4 --gpus-per-node 8
# finetune / pretrain Llama 3 70B with Megatron Bridge
OVERRIDES="train.train_iters=20 train.global_batch_size=128 train.micro_batch_size=1"
OVERRIDES+=" model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=4"
OVERRIDES+=" model.virtual_pipeline_model_parallel_size=5 model.sequence_parallel=true"
OVERRIDES+=" model.recompute_granularity=selective 'model.recompute_modules=[mlp]'"
eval srun --container-image=nvcr.io/nvidia/nemo:25.09 torchrun --nproc_per_node=8 \
  examples/recipes/llama/pretrain_llama3_70b.py $OVERRIDES mixed_precision=bf16_mixed
