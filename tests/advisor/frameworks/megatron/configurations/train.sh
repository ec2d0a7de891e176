#!/bin/bash
#SBATCH --recompute-granularity partial
TP=4          # tensor parallel
OPTIONS=" \
    --num-layers 80 --tensor-model-parallel-size $TP \
    --sequence-parallel"
MODEL_ARGS=(
    --recompute-granularity full   # --recompute-modules bogus
    --recompute-method "block"
    --recompute-num-layers ${LAYERS:-10}
)
# --recompute-granularity selective
torchrun --nproc-per-node 8 pretrain_gpt.py $OPTIONS "${MODEL_ARGS[@]}" \
    --distribute-saved-activations > log.txt 2>&1
