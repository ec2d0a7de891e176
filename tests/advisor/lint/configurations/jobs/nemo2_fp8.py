import nemo_run as run
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed
from megatron.core.distributed import DistributedDataParallelConfig

def main():
    recipe = llm.qwen3_30b_a3b.pretrain_recipe(dir="/x", name="q", num_nodes=2, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 1
    recipe.trainer.strategy.expert_model_parallel_size = 16
    recipe.trainer.strategy.pipeline_model_parallel_size = 1
    recipe.trainer.strategy.sequence_parallel = False
    recipe.trainer.strategy.ddp = run.Config(DistributedDataParallelConfig, grad_reduce_in_fp32=False, overlap_grad_reduce=True, use_distributed_optimizer=True)
    recipe.data.seq_length = 4096
    recipe.model.config.seq_length = 4096
    recipe.data.global_batch_size = 256
    recipe.data.micro_batch_size = 2
    recipe.model.config.moe_permute_fusion = True
    recipe.model.config.recompute_granularity = None
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    recipe.optim.config.use_precision_aware_optimizer = False
    run.run(recipe)

main()
