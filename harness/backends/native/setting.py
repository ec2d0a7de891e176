"""The settings that the native backend runs: the advisor's, and policies over single operators."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from advisor.base.errors import UserError, nearest_names
from advisor.frameworks.megatron.plan import EXPERT_REGIONS, REGIONS
from advisor.frameworks.megatron.setting import NONE, Granularity, RecomputeSetting, parse_setting
from advisor.layers.operators import Module

_POLICY: Final = "op:"


class OpPolicy(StrEnum):
    """`op:<policy>`: each layer is replayed, except for the operators whose outputs are kept.
    save_attention keeps the attention kernel's outputs, save_matmul those of the linear layers,
    torchtitan those of attention and of every second linear layer, the first one included
    (torchtitan 0.2 distributed/activation_checkpoint.py)."""

    SAVE_ATTENTION = "save_attention"
    SAVE_MATMUL = "save_matmul"
    TORCHTITAN = "torchtitan"

    @property
    def keeps_attention(self) -> bool:
        """Whether the attention kernel's outputs are kept."""
        return self is not OpPolicy.SAVE_MATMUL

    def keeps_matmul(self, number: int) -> bool:
        """Whether linear layer `number` of a layer (from 0, in execution order) is kept."""
        if self is OpPolicy.TORCHTITAN:
            return number % 2 == 0
        return self is OpPolicy.SAVE_MATMUL


class NativeSetting(Struct, frozen=True, kw_only=True):
    """A setting as the backend runs it: Megatron's words, or a policy over operators."""

    megatron: RecomputeSetting
    policy: OpPolicy | None = None

    @property
    def offloaded(self) -> frozenset[Module]:
        """Modules whose saved tensors go to host memory."""
        return frozenset(REGIONS[name] for name in self.megatron.offload_modules)


def parse_native_setting(text: str) -> NativeSetting:
    """Read a Workload's `recompute`; UserError on what no layer of this backend can do."""
    if not text.startswith(_POLICY):
        setting = parse_setting(text)
        for relation, nearest in _refusals(setting):
            raise UserError("--recompute", text, relation, nearest)
        return NativeSetting(megatron=setting)
    name = text.removeprefix(_POLICY)
    if name not in list(OpPolicy):
        relation = f"no operator policy is called {name}"
        raise UserError("--recompute", text, relation, nearest_names(name, list(OpPolicy)))
    return NativeSetting(megatron=NONE, policy=OpPolicy(name))


def _refusals(setting: RecomputeSetting) -> Iterator[tuple[str, str]]:
    """What is wrong with offload or sharding in `setting`, and what would be right."""
    offloaded, replayed = set(setting.offload_modules), set(setting.effective_modules)
    known = REGIONS.keys() - EXPERT_REGIONS
    for name in setting.offload_modules:
        if name not in known:
            yield f"the native backend does not offload {name}", nearest_names(name, known)
    if offloaded and setting.granularity is Granularity.FULL:
        yield ("replayed layers keep nothing to offload", "use offload with none or selective")
    if "layernorm" in replayed:
        replayed |= {"attn_norm", "mlp_norm"}
    both = ", ".join(sorted(offloaded & replayed))
    if both:
        yield f"{both}: cannot be both replayed and offloaded", "choose one of the two"
    if setting.distribute_saved_activations:
        whole = "the native backend does not distribute saved activations"
        yield whole, "drop +distribute_saved_activations"
