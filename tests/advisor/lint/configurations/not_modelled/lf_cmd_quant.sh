CUDA_VISIBLE_DEVICES=0 llamafactory-cli train \
    --stage sft --do_train True --model_name_or_path meta-llama/Llama-3.1-8B \
    --quantization_bit 4 --quantization_method bnb --finetuning_type lora \
    --template default --flash_attn fa2 --use_unsloth True --shift_attn True \
    --dataset alpaca_en_demo --cutoff_len 4096 --learning_rate 5e-05 --num_train_epochs 3.0 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 True \
    --output_dir saves/x --optim adamw_torch
