torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config \
   train.global_batch_size=64 train.micro_batch_size=2 model.tensor_model_parallel_size=2 model.sequence_parallel=true \
   model.seq_length=4096 dataset.sequence_length=4096 optimizer.use_precision_aware_optimizer=true optimizer.exp_avg_dtype=torch.bfloat16 \
   ddp.grad_reduce_in_fp32=false model.cuda_graph_impl=transformer_engine 'model.cuda_graph_modules=[attn]' model.num_layers=16 model.apply_rope_fusion=false
