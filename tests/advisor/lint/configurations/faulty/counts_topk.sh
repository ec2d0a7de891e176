torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 \
  --num-experts 8 --moe-router-topk 16 --expert-model-parallel-size 8 \
  --moe-token-dispatcher-type alltoall --moe-grouped-gemm --disable-bias-linear \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --train-iters 10
