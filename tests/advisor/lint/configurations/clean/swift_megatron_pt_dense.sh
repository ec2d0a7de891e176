CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 megatron sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --save_safetensors true \
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' 'swift/self-cognition#500' \
    --tensor_model_parallel_size 2 --sequence_parallel true \
    --micro_batch_size 16 --global_batch_size 16 \
    --recompute_granularity selective \
    --recompute_modules core_attn \
    --attention_backend unfused \
    --num_train_epochs 1 --finetune true --lr 1e-5 --bf16 true --max_length 2048 --output_dir megatron_output/Qwen2.5-7B-Instruct
