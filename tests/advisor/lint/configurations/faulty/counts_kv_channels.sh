torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4100 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --train-iters 100
