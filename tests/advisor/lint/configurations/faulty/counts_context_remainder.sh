torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
  --num-attention-heads 32 --seq-length 10000 --max-position-embeddings 131072 \
  --context-parallel-size 16 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --bf16
