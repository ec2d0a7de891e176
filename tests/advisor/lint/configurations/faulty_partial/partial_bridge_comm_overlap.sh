python scripts/performance/run_recipe.py --recipe deepseek_v3_pretrain_config \
  model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1 \
  comm_overlap.overlap_moe_expert_parallel_comm=true
