import lightning.pytorch as pl
import nemo_run as run
import torch
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm import MixtralConfig8x7B, MixtralModel
from megatron.core.distributed import DistributedDataParallelConfig


def trainer() -> run.Config:
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=8,
        pipeline_model_parallel_size=1,
        pipeline_dtype=None,
        virtual_pipeline_model_parallel_size=None,
        context_parallel_size=2,
        expert_model_parallel_size=8,
        sequence_parallel=True,
        gradient_as_bucket_view=True,
        ckpt_async_save=True,
        ddp=run.Config(DistributedDataParallelConfig, check_for_nan_in_grad=True, grad_reduce_in_fp32=True,
                       overlap_grad_reduce=True, overlap_param_gather=True),
    )
    return run.Config(nl.Trainer, accelerator="gpu", devices=8, num_nodes=4, strategy=strategy, max_steps=100)


def model() -> run.Config[pl.LightningModule]:
    return run.Config(MixtralModel, config=run.Config(MixtralConfig8x7B, recompute_granularity="selective", recompute_modules=["moe_act"]))
