torchrun --nproc_per_node=8 --nnodes=2 run_recipe.py --recipe llama3_8b_pretrain_config \
  model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=5 train.global_batch_size=128
