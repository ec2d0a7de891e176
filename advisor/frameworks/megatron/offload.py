"""Which modules' saved tensors Megatron sends to the host.

Source, read and not run: megatron-core 0.16.1 transformer/attention.py, transformer_layer.py,
moe/experts.py, pipeline_parallel/fine_grained_activation_offload.py (0.19.2 for the fraction);
transformer_block.py for cpu_offloading, which offloads everything that the first layers of a chunk
save.
"""

from functools import lru_cache

from msgspec.structs import replace

from advisor.frameworks.megatron.setting import RecomputeSetting
from advisor.layers.operators import Module
from advisor.models.layer_kind import SOFTMAX_MIXERS, FeedForward, LayerKind
from advisor.models.options import TransformerImpl
from advisor.models.spec import ModelSpec

EVERYTHING = frozenset(Module)
"""What cpu_offloading takes of a layer."""

REGIONS = {
    "attn_norm": Module.INPUT_LAYERNORM,
    "qkv_linear": Module.LINEAR_QKV,
    "core_attn": Module.CORE_ATTENTION,
    "attn_proj": Module.LINEAR_PROJ,
    "mlp_norm": Module.PRE_MLP_LAYERNORM,
}
"""What offload_modules names in a layer; of experts nothing is modelled."""

_OF_ATTENTION = frozenset({"attn_norm", "qkv_linear", "core_attn", "attn_proj"})
_LATENT_QKV = frozenset({Module.QKV_DOWN_PROJ, Module.QK_LAYERNORM, Module.QKV_UP_PROJ})


@lru_cache(maxsize=1024)
def offloaded_modules(
    setting: RecomputeSetting, model: ModelSpec, kind: LayerKind
) -> frozenset[Module]:
    """Modules of a layer whose saved tensors leave the device under fine-grained offloading.

    Transformer Engine fuses the norms of dense layers into the linear layers that follow: there is
    no norm of its own to offload, and qkv_linear takes the input norm along. Multi-latent attention
    has an input norm of its own, and its region qkv_linear ends with the up-projections.
    """
    regions = {
        name: frozenset({REGIONS[name]}) for name in setting.offload_modules if name in REGIONS
    }
    if model.multi_latent_attention and "qkv_linear" in regions:
        regions["qkv_linear"] = _LATENT_QKV
    if model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE:
        if not model.multi_latent_attention:
            regions.pop("attn_norm", None)
        if kind.feed_forward is FeedForward.DENSE:
            regions.pop("mlp_norm", None)
        if "qkv_linear" in regions and not model.multi_latent_attention:
            regions["qkv_linear"] |= {REGIONS["attn_norm"]}
    if kind.mixer not in SOFTMAX_MIXERS:  # the regions of attention are SelfAttention's
        regions = {name: regions[name] for name in regions if name not in _OF_ATTENTION}
    return frozenset().union(*regions.values())


@lru_cache(maxsize=4096)
def offloaded_by_layer(
    setting: RecomputeSetting, model: ModelSpec, layers: tuple[LayerKind, ...]
) -> tuple[frozenset[Module], ...]:
    """Of each layer of a chunk, the modules whose saved tensors leave the device.

    Every module of a layer is a group of its own; of a fraction below 1 the last groups of the
    chunk stay (post_warmup_callback). Left out: of each module the last group of a step, which
    stays so that nobody waits for it.
    """
    if setting.offload_fraction == 1.0 or not setting.offload_modules:
        return tuple(offloaded_modules(setting, model, kind) for kind in layers)
    groups = [_groups(setting, model, kind) for kind in layers]
    number = sum(map(len, groups))
    left, found = number - int(number * (1 - setting.offload_fraction)), []
    for kind, names in zip(layers, groups, strict=True):
        chosen = replace(setting, offload_modules=names[: max(0, left)])
        found.append(offloaded_modules(chosen, model, kind))
        left -= len(names)
    return tuple(found)


@lru_cache(maxsize=1024)
def _groups(setting: RecomputeSetting, model: ModelSpec, kind: LayerKind) -> tuple[str, ...]:
    """What of offload_modules sends anything in a layer, in the order of its forward."""

    def sends(name: str) -> bool:
        return bool(offloaded_modules(replace(setting, offload_modules=(name,)), model, kind))

    return tuple(name for name in REGIONS if name in setting.offload_modules and sends(name))
