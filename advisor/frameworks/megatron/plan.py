"""From Megatron's recompute settings to a neutral RecomputePlan of one model chunk.

Source: megatron-core 0.16.1 transformer/transformer_block.py (_checkpointed_forward),
transformer_layer.py, attention.py; run there through tests/oracles.
"""

from functools import lru_cache

from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.layers.operators import Module
from advisor.models.spec import ModelSpec, TransformerImpl
from advisor.recompute import RecomputePlan, ReplayRun, Segment

_MLP_MODULES = frozenset({Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})
_ATTENTION_MASK_TYPE_BYTES = 4  # one int32 tensor among the checkpoint's arguments (attention.py)


@lru_cache(maxsize=4096)
def chunk_plan(
    setting: RecomputeSetting, model: ModelSpec, num_layers: int, sequence_parallel: bool
) -> RecomputePlan:
    """Segments of a chunk of `num_layers` layers under `setting`.

    uniform N checkpoints every N layers (the last checkpoint may hold fewer); block N checkpoints
    the first min(N, num_layers) layers of THIS chunk one by one. Selective applies to every layer.
    """
    if setting.granularity is Granularity.FULL:
        shards = setting.distribute_saved_activations and not sequence_parallel
        return RecomputePlan(_full_segments(setting, num_layers, shards))
    return RecomputePlan((Segment(num_layers, runs=selective_runs(setting, model)),))


def _full_segments(
    setting: RecomputeSetting, num_layers: int, shards_input: bool
) -> tuple[Segment, ...]:
    wanted = setting.num_layers or 1
    if setting.method is Method.UNIFORM:
        even, rest = divmod(num_layers, wanted)
        sizes = [(wanted, even)] * (even > 0) + [(rest, 1)] * (rest > 0)
        return tuple(
            Segment(size, whole=True, shards_input=shards_input, copies=copies)
            for size, copies in sizes
        )
    replayed = min(wanted, num_layers)
    checkpoints = Segment(1, whole=True, shards_input=shards_input, copies=replayed)
    if num_layers == replayed:
        return (checkpoints,)
    return (checkpoints, Segment(num_layers - replayed))


@lru_cache(maxsize=1024)
def selective_runs(setting: RecomputeSetting, model: ModelSpec) -> tuple[ReplayRun, ...]:
    """Runs of one dense layer; labels that act on nothing in it give none.

    core_attn and mlp are plain checkpoints; layernorm discards outputs, and acts on the local spec
    alone: on Transformer Engine's dense spec the norms are fused into the linear layers, so that a
    checkpoint around the MLP replays its norm as well.
    """
    runs = []
    modules = setting.effective_modules
    if "core_attn" in modules:
        runs.append(
            ReplayRun(
                frozenset({Module.CORE_ATTENTION}), extra_kept_bytes=_ATTENTION_MASK_TYPE_BYTES
            )
        )
    local = model.transformer_impl is TransformerImpl.LOCAL
    if "mlp" in modules:
        fused_norm = frozenset() if local else frozenset({Module.PRE_MLP_LAYERNORM})
        runs.append(ReplayRun(_MLP_MODULES | fused_norm))
    if "layernorm" in modules and local:
        runs += [
            _discarding(Module.INPUT_LAYERNORM, replayed_before=Module.LINEAR_PROJ),
            _discarding(Module.PRE_MLP_LAYERNORM, replayed_before=Module.LINEAR_FC2),
        ]
    return tuple(runs)


def _discarding(module: Module, *, replayed_before: Module) -> ReplayRun:
    """One norm whose output is dropped; a hook on its branch's output writes it again."""
    return ReplayRun(frozenset({module}), discards_output=True, replayed_before=replayed_before)


def has_effect(setting: RecomputeSetting, model: ModelSpec) -> bool:
    """Whether `setting` replays anything in this model."""
    return setting.granularity is Granularity.FULL or bool(selective_runs(setting, model))
