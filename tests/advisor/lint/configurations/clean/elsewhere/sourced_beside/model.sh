TP=2
MODEL_ARGS=(
   --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128
   --group-query-attention --num-query-groups 4 --qk-layernorm
   --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
   --position-embedding-type rope --rotary-base 1000000 --max-position-embeddings 40960
   --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm
   --moe-token-dispatcher-type alltoall --attention-dropout 0 --hidden-dropout 0
)
