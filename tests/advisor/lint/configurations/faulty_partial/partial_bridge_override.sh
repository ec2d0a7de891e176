#!/bin/bash
torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe ${RECIPE} \
  model.recompute_granularity=full model.recompute_method=uniform
