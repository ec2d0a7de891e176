"""What stands against a plan of blocks."""

from collections.abc import Iterator
from typing import Final

from advisor.base.dtypes import DType
from advisor.base.units import either
from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime, decisions
from advisor.frameworks.torch.rules import Problem, block_shape
from advisor.job.job import AttnImplementation, Job
from advisor.layers.transformer import transformer_layer

_SOURCE: Final = "torch 2.13 utils/checkpoint.py"


def block_problems(blocks: tuple[BlockRegime, ...], job: Job) -> Iterator[Problem]:
    """Why `blocks` are no plan of the job's; of none nothing."""
    if not blocks:
        return
    layers = job.model.num_layers
    if len(blocks) != layers:
        planned = "1 block" if len(blocks) == 1 else f"{len(blocks)} blocks"
        reason = f"the plan has {planned}, but the model has {layers}"
        yield Problem("blocks.number", reason, f"use {layers}", "advisor")
        return
    yield from _unknown_calls(job)
    yield from _unknown_names(blocks, job)
    away = any(one.on_host for one in blocks)
    if away and (job.config.torch_compile or job.layout.tensor_model_parallel_size > 1):
        reason = (
            "only outputs of eager blocks without tensor parallelism can be offloaded to the host"
        )
        yield Problem("blocks.on_host", reason, "leave the ~ out", _SOURCE)


def _unknown_calls(job: Job) -> Iterator[Problem]:
    """Jobs whose blocks call their products and attention otherwise."""
    config = job.config
    words = {
        "8-bit linear layers": config.precision.is_quantized,
        "DeepSpeed's tiled MLP": config.tiled_mlp,
        "attention that is not torch's own": config.attn_implementation
        is not AttnImplementation.SDPA,
        "autocast": job.num_gpus == 1 and config.weights_dtype is DType.FP32,
    }
    for what, there in words.items():
        if there:
            reason = f"with {what}, a plan of blocks cannot identify the operators of a block"
            yield Problem("blocks.calls", reason, "full, or a policy over operators", _SOURCE)


def _unknown_names(blocks: tuple[BlockRegime, ...], job: Job) -> Iterator[Problem]:
    shape = block_shape(job)
    for kind in dict.fromkeys(job.model.layer_kinds):
        known = decisions(transformer_layer(shape, kind))
        own = {one for one, its in zip(blocks, job.model.layer_kinds, strict=True) if its == kind}
        named = {name for one in own for name in (*one.kept, *one.on_host)}
        for name in sorted(named - known.keys() - {INPUT}):
            reason = f"blocks have no operator {name} whose output can be kept"
            yield Problem("blocks.unknown", reason, f"use {either(known)}", _SOURCE)
