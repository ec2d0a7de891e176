#!/usr/bin/env bash
GPUS=${1:-4}
PORT=$(( RANDOM % 1000 + 20000 ))
args=$(cat <<'ARGS'
--model_name_or_path huggyllama/llama-7b
--data_path ./alpaca_data.json
--bf16 True
--output_dir out
--num_train_epochs 3
--per_device_train_batch_size 4
--per_device_eval_batch_size 4
--gradient_accumulation_steps 8
--evaluation_strategy no
--save_strategy steps
--learning_rate 2e-5
--fsdp "full_shard auto_wrap"
--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer
--tf32 True
ARGS
)
eval torchrun --nproc_per_node=$GPUS --master_port=$PORT train.py $args | tee -a train.log
