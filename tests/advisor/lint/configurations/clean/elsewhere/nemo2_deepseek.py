import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes import deepseek_v3


def configure(nodes: int = 128):
    recipe = deepseek_v3.pretrain_recipe(name="dsv3", dir="/checkpoints", num_nodes=nodes, num_gpus_per_node=8)
    recipe.model.config.recompute_granularity = "selective"
    recipe.model.config.recompute_modules = ["mla_up_proj", "layernorm", "moe_act"]
    recipe.trainer.strategy.sequence_parallel = True
    recipe.trainer.strategy.account_for_embedding_in_pipeline_split = True
    recipe.trainer.strategy.account_for_loss_in_pipeline_split = True
    recipe.trainer.max_steps = 50
    return recipe


if __name__ == "__main__":
    run.run(configure(), executor=run.LocalExecutor(ntasks_per_node=8, launcher="torchrun"))
