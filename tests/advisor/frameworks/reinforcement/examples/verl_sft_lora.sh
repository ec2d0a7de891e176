#!/bin/bash
set -x

if [ "$#" -lt 2 ]; then
    echo "Usage: run_qwen_sft.sh <nproc_per_node> <save_path> [other_configs...]"
    exit 1
fi

nproc_per_node=$1
save_path=$2

# Shift the arguments so $@ refers to the rest
shift 2

torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
     -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.messages_key=messages \
    data.train_batch_size=96 \
    data.max_length=8192 \
    data.use_dynamic_bsz=True \
    data.max_token_len_per_gpu=16384 \
    data.pad_mode=no_padding \
    data.truncation=error \
    optim.lr=1e-4 \
    optim.lr_warmup_steps_ratio=0.03 \
    engine=fsdp \
    engine.strategy=fsdp2 \
    engine.ulysses_sequence_parallel_size=2 \
    engine.param_offload=False \
    engine.optimizer_offload=False \
    model.path=Qwen/Qwen3-8B \
    model.use_remove_padding=True \
    model.enable_gradient_checkpointing=True \
    model.lora_rank=32 \
    model.lora_alpha=16 \
    model.target_modules=all-linear \
    model.use_liger=True \
    trainer.default_local_dir=$save_path \
    trainer.project_name=gsm8k-sft \
    trainer.experiment_name=gsm8k-sft-qwen3-8b \
    trainer.logger='["console"]' \
    trainer.total_epochs=1 $@
