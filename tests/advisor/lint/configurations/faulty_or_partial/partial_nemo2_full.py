import nemo_run as run
from nemo.collections import llm

recipe = llm.mixtral_8x7b.pretrain_recipe(name="m", dir="/c", num_nodes=2, num_gpus_per_node=8)
recipe.model.config.recompute_granularity = "full"
recipe.model.config.recompute_num_layers = 2
run.run(recipe)
