"""The settings that the native backend runs: the advisor's, and policies over single operators."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from advisor.base.errors import UserError
from advisor.base.units import nearest_names
from advisor.frameworks.megatron.setting import NONE, Granularity, RecomputeSetting, parse_setting
from advisor.layers.operators import Module

_POLICY: Final = "op:"


class OpPolicy(StrEnum):
    """`op:<policy>`: each layer is replayed, but for the operators whose outputs are kept.

    save_attention keeps the attention kernel's outputs, save_matmul those of the linear layers,
    torchtitan those of attention and of every second linear layer, the first one included
    (torchtitan 0.2 distributed/activation_checkpoint.py).
    """

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


OFFLOADABLE: Final = {
    "attn_norm": Module.INPUT_LAYERNORM,
    "qkv_linear": Module.LINEAR_QKV,
    "core_attn": Module.CORE_ATTENTION,
    "attn_proj": Module.LINEAR_PROJ,
    "mlp_norm": Module.PRE_MLP_LAYERNORM,
}
"""Megatron's names of what `+offload=` can send to host memory here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSetting:
    """A setting as the backend runs it: Megatron's words, or a policy over operators."""

    megatron: RecomputeSetting
    policy: OpPolicy | None = None

    @property
    def offloaded(self) -> frozenset[Module]:
        """Modules whose saved tensors go to host memory."""
        return frozenset(OFFLOADABLE[name] for name in self.megatron.offload_modules)


def parse_native_setting(text: str) -> NativeSetting:
    """Read a Workload's `recompute`; UserError on what no layer of this backend can do."""
    if not text.startswith(_POLICY):
        setting = NativeSetting(megatron=parse_setting(text))
    else:
        name = text.removeprefix(_POLICY)
        if name not in list(OpPolicy):
            raise UserError(
                "--recompute",
                text,
                f"no operator policy is called {name}",
                nearest_names(name, list(OpPolicy)),
            )
        setting = NativeSetting(megatron=NONE, policy=OpPolicy(name))
    _check_offload(text, setting.megatron)
    return setting


def _check_offload(text: str, setting: RecomputeSetting) -> None:
    for name in setting.offload_modules:
        if name not in OFFLOADABLE:
            raise UserError(
                "--recompute",
                text,
                f"the native backend does not offload {name}",
                nearest_names(name, OFFLOADABLE),
            )
    if setting.offload_modules and setting.granularity is Granularity.FULL:
        raise UserError(
            "--recompute",
            text,
            "replayed layers keep nothing that could be offloaded",
            "use it with none or selective",
        )
    both = set(setting.offload_modules) & set(setting.effective_modules)
    if "layernorm" in setting.effective_modules:
        both |= {"attn_norm", "mlp_norm"} & set(setting.offload_modules)
    if both:
        raise UserError(
            "--recompute",
            text,
            f"{', '.join(sorted(both))}: replayed and offloaded",
            "do one of the two",
        )
    if setting.distribute_saved_activations:
        raise UserError(
            "--recompute",
            text,
            "the native backend keeps checkpoint inputs whole",
            "drop +distribute_saved_activations",
        )
