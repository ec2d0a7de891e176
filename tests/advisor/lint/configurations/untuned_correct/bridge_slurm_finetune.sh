#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
CONFIG_OVERRIDES=(
    "model.tensor_model_parallel_size=2"
    "model.expert_model_parallel_size=8"
    "model.recompute_granularity=full"
    "model.recompute_method=uniform"
    "model.recompute_num_layers=1"
    "train.global_batch_size=64"
)
CMD="uv run python /opt/Megatron-Bridge/scripts/training/run_recipe.py --recipe qwen3_30b_a3b_finetune_config ${CONFIG_OVERRIDES[*]}"
srun --mpi=pmix --no-kill bash -c "cd /opt && $CMD"
