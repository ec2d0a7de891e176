#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
ARGS=$(python tools/yaml_to_args.py configs/${1}.yaml)
srun -l bash -c "torchrun --nproc_per_node 8 --nnodes \$SLURM_NNODES --node_rank \$SLURM_NODEID pretrain_gpt.py ${ARGS} --sequence-parallel --tp-comm-overlap --overlap-param-gather --recompute-granularity full --recompute-method block --recompute-num-layers ${RECOMPUTE_LAYERS:-4}"
