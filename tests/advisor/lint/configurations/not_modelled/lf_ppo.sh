llamafactory-cli train --stage ppo --do_train True --model_name_or_path Qwen/Qwen2.5-7B \
  --adapter_name_or_path saves/sft --reward_model saves/rm --reward_model_type full \
  --finetuning_type freeze --freeze_trainable_layers 4 --dataset alpaca_en_demo --template qwen \
  --cutoff_len 2048 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --bf16 True \
  --output_dir saves/ppo --learning_rate 1e-5
