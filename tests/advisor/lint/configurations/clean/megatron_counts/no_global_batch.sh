torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 6 --train-iters 100 --fp16
