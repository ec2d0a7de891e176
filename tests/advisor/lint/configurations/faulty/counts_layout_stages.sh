torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py --num-layers 16 --hidden-size 4096 --num-attention-heads 32 \
  --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et*3|(tt|)*5tttL" \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --train-iters 100
