"""Which submodules of a layer CUDA graphs hold.

Source: megatron-core 0.16.1 transformer/transformer_layer.py (_te_cuda_graph_capture) and 0.19.2
transformer/cuda_graphs.py.
"""

from typing import Final

from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.megatron.moe.shared import SHARED_MODULES
from advisor.layers.operators import Module

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
