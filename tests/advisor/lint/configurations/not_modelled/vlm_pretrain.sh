#!/bin/bash
# Pretrain a multimodal model.
export NCCL_IB_SL=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
USER=$SLURM_JOB_USER
BATCH=1
if [[ $BATCH -eq 0 ]]; then
    MBZ=1
    BZ=2
    NW=1
    HD=0.0
    LI=1
    EXTRA_ARGS=""
else
    MBZ=8
    BZ=256
    NW=2
    HD=0.1
    LI=10
    EXTRA_ARGS=""
fi
OPTIONS=" \
    --apply-layernorm-1p \
    --attention-softmax-in-fp32 \
    --use-checkpoint-args \
    --use-distributed-optimizer \
    --transformer-impl transformer_engine \
    --use-te \
    --normalization RMSNorm \
    --group-query-attention \
    --num-query-groups 8 \
    --no-masked-softmax-fusion \
    --num-workers ${NW} \
    --exit-duration-in-mins 230 \
    --use-flash-attn \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --position-embedding-type rope \
    --rotary-percent 1.0 \
    --rotary-base 1000000 \
    --swiglu \
    --attention-dropout 0.0 \
    --hidden-dropout ${HD} \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 1 \
    --num-layers 32 \
    --hidden-size 4096 \
    --num-attention-heads 32 \
    --seq-length 576 \
    --decoder-seq-length 1024 \
    --max-position-embeddings 4096 \
    --ffn-hidden-size 14336 \
    --train-iters 20000 \
    --micro-batch-size ${MBZ} \
    --global-batch-size ${BZ} \
    --lr-decay-iters 20000 \
    --lr-warmup-fraction .01 \
    --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine \
    --log-interval ${LI} --eval-iters 10 --eval-interval 1000 \
    --tokenizer-type MultimodalTokenizer \
    --tokenizer-model mistralai/Mistral-7B-Instruct-v0.3 --tokenizer-prompt-format mistral \
    --data-path pretrain_dataset.yaml --dataloader-type external --split 100,0,0 \
    --clip-grad 1.0 --weight-decay 1e-2 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.014 \
    --log-params-norm --log-num-zeros-in-grad \
    --bf16 --eod-mask-loss --freeze-LM --freeze-ViT --patch-dim 14 --img-h 336 --img-w 336 \
    --dataloader-save /out/dataloader --use-image-tag --language-model-type=mistral_7b --disable-vision-class-token \
    ${EXTRA_ARGS} \
    --distributed-timeout-minutes 60 --ckpt-format torch"
torchrun --nproc_per_node 8 examples/multimodal/train.py ${OPTIONS}
