#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8
srun --container-image nvcr.io/nvidia/nemo:25.07 \
  nemo llm pretrain --factory "${FACTORY}" -y \
  model.config.recompute_granularity=full model.config.recompute_method=block model.config.recompute_num_layers=2 \
  trainer.strategy.sequence_parallel=true trainer.strategy.expert_model_parallel_size=8
