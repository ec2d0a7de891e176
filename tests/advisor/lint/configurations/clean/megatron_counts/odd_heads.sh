torchrun --nproc_per_node=4 pretrain_gpt.py --num-layers 28 --hidden-size 1000 --num-attention-heads 12 --kv-channels 128 \
  --seq-length 4096 --max-position-embeddings 32768 --context-parallel-size 2 --micro-batch-size 1 --global-batch-size 10 --bf16 --train-iters 100
