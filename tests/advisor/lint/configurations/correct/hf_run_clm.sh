#!/bin/bash
export WANDB_PROJECT=clm
torchrun --nproc_per_node 8 run_clm.py \
    --model_name_or_path meta-llama/Llama-2-7b-hf \
    --dataset_name wikitext \
    --dataset_config_name wikitext-2-raw-v1 \
    --per_device_train_batch_size 2 \
    --per_device_eval_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --gradient_checkpointing True \
    --gradient_checkpointing_kwargs '{"use_reentrant": false}' \
    --bf16 True \
    --tf32 True \
    --do_train --do_eval \
    --fsdp "full_shard auto_wrap" \
    --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \
    --learning_rate 2e-5 --lr_scheduler_type cosine --warmup_ratio 0.03 \
    --output_dir /tmp/test-clm 2> >(tee err.log >&2)
