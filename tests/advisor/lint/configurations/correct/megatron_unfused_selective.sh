# core_attn is worth it where scores are kept
CUDA_DEVICE_MAX_CONNECTIONS=1 \
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 8 --global-batch-size 64 --fp16 \
  --attention-backend unfused --tensor-model-parallel-size 8 --sequence-parallel \
  --recompute-granularity selective --recompute-modules core_attn \
  --use-distributed-optimizer
