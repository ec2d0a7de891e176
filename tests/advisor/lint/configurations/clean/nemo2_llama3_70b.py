import nemo_run as run
from nemo.collections import llm
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

recipe = llm.llama3_70b.pretrain_recipe(name="llama3-70b", dir="/ckpt", num_nodes=8, num_gpus_per_node=8)
recipe.model.config.recompute_granularity = "full"
recipe.model.config.recompute_method = "block"
recipe.model.config.recompute_num_layers = 4
recipe.trainer.strategy.tensor_model_parallel_size = 4
recipe.trainer.strategy.pipeline_model_parallel_size = 4
recipe.trainer.strategy.virtual_pipeline_model_parallel_size = 5
recipe.trainer.strategy.context_parallel_size = 2
recipe.trainer.strategy.sequence_parallel = True
recipe.data.global_batch_size = 512
recipe.data.micro_batch_size = 1
recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))

if __name__ == "__main__":
    run.run(recipe, executor=run.LocalExecutor(ntasks_per_node=8))
