"""Which submodules of a layer CUDA graphs hold.

Source: megatron-core 0.16.1 transformer/transformer_layer.py (_te_cuda_graph_capture) and 0.19.2
transformer/cuda_graphs.py.
"""

from typing import Final

from advisor.base.dtypes import DType
from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.megatron.moe.shared import SHARED_MODULES
from advisor.layers.operators import Module
from advisor.models.layer_kind import SOFTMAX_MIXERS, LayerKind

_MAMBA: Final = frozenset(
    module for module in Module if module.startswith("m") and "mixer" in module
)
_MLP: Final = frozenset(
    {
        Module.PRE_MLP_LAYERNORM,
        Module.LINEAR_FC1,
        Module.ACTIVATION,
        Module.LINEAR_FC2,
        Module.POST_MLP_LAYERNORM,
        Module.MLP_BDA,
    }
)
_HELD: Final = {
    "attn": frozenset(module for module in Module if "attn" in module or "attention" in module)
    | {Module.INPUT_LAYERNORM},
    "mlp": _MLP,
    "moe": frozenset(Module),
    "moe_router": frozenset({Module.PRE_MLP_LAYERNORM, Module.ROUTER}),
    "moe_preprocess": frozenset({Module.DISPATCH}),
    "mamba": _MAMBA | {Module.MAMBA_BDA, Module.INPUT_LAYERNORM},
}
"""By the name of what is captured."""


def graph_inputs(job: Job, layers: tuple[LayerKind, ...]) -> int:
    """Bytes of the attention masks that Transformer Engine's graphs of `layers` have as inputs of
    their own, one a layer and microbatch in flight: bools [micro_batch_size, 1, seq_length / cp,
    seq_length]. Hidden states are copied into such inputs as well, which then are what is kept.

    Source: megatron-core 0.16.1 to 0.19.2 transformer_layer.py get_layer_static_inputs,
    cuda_graphs.py _get_cuda_graph_input_data (used again once a microbatch went back). Left out:
    the graphs' gradients of in- and outputs, and their own pool, which keeps its activations when
    the optimizer steps.
    """
    config, names = job.config, job.config.cuda_graph_modules
    if config.cuda_graph_impl is not CudaGraphImpl.TRANSFORMER_ENGINE:
        return 0
    if names and "attn" not in names:
        return 0
    attention = sum(kind.mixer in SOFTMAX_MIXERS for kind in layers)
    mask = config.micro_batch_size * config.seq_length**2 // job.layout.context_parallel_size
    return attention * mask * DType.BOOL.itemsize


def graphed_modules(job: Job) -> frozenset[Module]:
    """Submodules whose kernels CUDA graphs launch; none named: all of a layer."""
    config, model = job.config, job.model
    if config.cuda_graph_impl is CudaGraphImpl.NONE:
        return frozenset()
    names = config.cuda_graph_modules
    if config.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION or not names:
        return frozenset(Module)
    held = frozenset[Module]().union(*(_HELD.get(name, frozenset()) for name in names))
    beside = model.moe_shared_expert_overlap
    return held | SHARED_MODULES if "moe_router" in names and not beside else held
