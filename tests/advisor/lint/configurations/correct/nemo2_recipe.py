import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed

NODES = 4


def configure_recipe(nodes: int = NODES, gpus_per_node: int = 8):
    recipe = llm.llama3_70b.pretrain_recipe(
        dir="/checkpoints/llama3",
        name="llama3_70b",
        num_nodes=nodes,
        num_gpus_per_node=gpus_per_node,
    )
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.pipeline_model_parallel_size = 4
    recipe.trainer.strategy.virtual_pipeline_model_parallel_size = 5
    recipe.trainer.strategy.sequence_parallel = True
    recipe.trainer.max_steps = 100
    recipe.model.config.recompute_granularity = "full"
    recipe.model.config.recompute_method = "block"
    recipe.model.config.recompute_num_layers = 2
    recipe.data.micro_batch_size = 1
    recipe.data.global_batch_size = 128
    return recipe


if __name__ == "__main__":
    run.run(configure_recipe(), executor=run.LocalExecutor(ntasks_per_node=8, launcher="torchrun"))
