import nemo_run as run
from nemo.collections import llm


def recipe():
    r = llm.llama3_8b.pretrain_recipe(name="x", dir="/x", num_nodes=1, num_gpus_per_node=8)
    r.model.config.recompute_granularity = "selective"
    r.model.config.recompute_method = "uniform"
    r.model.config.recompute_num_layers = 1
    r.trainer.strategy.tensor_model_parallel_size = 2
    return r
