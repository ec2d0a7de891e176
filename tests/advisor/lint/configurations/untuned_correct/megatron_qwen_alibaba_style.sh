#!/bin/bash
set -e
ENV=$1
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
export PYTHONPATH=$PYTHONPATH:${CURRENT_DIR}/../../PAI-Megatron-LM
export CUDA_DEVICE_MAX_CONNECTIONS=1

if [ -z ${MP_VP} ]; then
    vp_options=""
else
    vp_options=" \
        --num-layers-per-virtual-pipeline-stage ${MP_VP}"
fi

MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
TP=$9
PP=${10}
CP=${11}
SP=${12}
AC=${15}

if [ $ENV = dsw ]; then
    MASTER_ADDR=localhost
    MASTER_PORT=$(shuf -n 1 -i 10000-65535)
    NNODES=1
    NODE_RANK=0
    GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    NODE_RANK=${RANK}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

if [ $MODEL_SIZE = 7B ]; then
    NUM_LAYERS=28; HIDDEN_SIZE=3584; NUM_ATTN_HEADS=28; INTERMEDIATE_SIZE=18944; NUM_KEY_VALUE_HEADS=4
elif [ $MODEL_SIZE = 72B ]; then
    NUM_LAYERS=80; HIDDEN_SIZE=8192; NUM_ATTN_HEADS=64; INTERMEDIATE_SIZE=29568; NUM_KEY_VALUE_HEADS=8
fi

if [ $AC = full ]; then
    _check=$(( ($NUM_LAYERS / ${PP}) % ${MP_AC_LAYERS:-1} ))
    if [ $_check != 0 ]; then
        echo "the num layers per pp rank must be a multiple of the recompute layers."
        exit -1
    fi
    activation_checkpoint_options=" \
        --recompute-method uniform \
        --recompute-num-layers ${MP_AC_LAYERS:-1} \
        --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_checkpoint_options=" \
        --recompute-granularity selective --recompute-modules mlp"
elif [ $AC = none ]; then
    activation_checkpoint_options=" \
    "
fi

if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=" "
fi

megatron_options="  \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --ffn-hidden-size ${INTERMEDIATE_SIZE} \
        --seq-length ${5} --max-position-embeddings 131072 \
        --group-query-attention --num-query-groups ${NUM_KEY_VALUE_HEADS} \
        --attention-dropout 0.0 --hidden-dropout 0.0 \
        --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias --bf16 \
        --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
        --context-parallel-size ${CP}"

run_cmd="torchrun $DISTRIBUTED_ARGS ../qwen2/pretrain_qwen.py
 ${megatron_options} ${activation_checkpoint_options} ${sp_options} ${vp_options}"

echo ${run_cmd}
eval ${run_cmd}
set +x
