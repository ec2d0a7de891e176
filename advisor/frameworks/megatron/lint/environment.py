"""Environment variables that Megatron reads: what they contradict, and what they settle.

Source: megatron-core 0.16.1 core/models/common/language_module/language_module.py:98-126; 0.19.2
training/arguments.py:1854-1887.
"""

from collections.abc import Iterator
from typing import Final

from advisor.base.rule import Finding, Verdict
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.reading.read_configuration import expandable_segments

_CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
_BACKENDS: Final = {
    "flash": ("1", "0", "0"),
    "fused": ("0", "1", "0"),
    "unfused": ("0", "0", "1"),
    "local": ("0", "0", "0"),
    "auto": ("1", "1", "1"),
}
_SWITCHES: Final = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_ASSERTED: Final = (
    "megatron-core 0.16.1 core/models/common/language_module/language_module.py:98-126"
)
_SETTLES: Final = {
    "graph_register_environment": ("NCCL_GRAPH_REGISTER", "0"),
    "offload_environment": ("NVTE_CPU_OFFLOAD_V1", "1"),
    "bridge_offload_environment": ("NVTE_CPU_OFFLOAD_V1", "1"),
}


def put_environment(read: ReadSettings) -> None:
    """The allocator's option becomes a field that the rules read."""
    found = expandable_segments(read.environment)
    if found is not None:
        read.put("expandable_segments", found.value, found.written, found.place)


def silenced(rule: str, read: ReadSettings) -> bool:
    """Whether a rule asks for a variable that is set as it asks."""
    if rule not in _SETTLES:
        return False
    name, value = _SETTLES[rule]
    return read.environment.get(name, ("", None))[0] == value


def environment_findings(
    read: ReadSettings, settings: RawSettings, revision: Revision
) -> Iterator[Finding]:
    """What an exported variable contradicts."""
    expected = _BACKENDS.get(settings.attention_backend)
    for name, value in zip(_SWITCHES, expected or (), strict=False):
        text, place = read.environment.get(name, ("", read.place))
        if text in ("0", "1") and text != value:
            yield Finding(
                rule="attention_environment",
                reason=f"{name}={text} contradicts attention_backend = "
                f"{settings.attention_backend}, which expects {value}",
                fix=f"unset {name}, and choose with --attention-backend",
                source=_ASSERTED,
                place=place,
            )
    yield from _connections(read, settings)


def _connections(read: ReadSettings, settings: RawSettings) -> Iterator[Finding]:
    """TP and CP want one connection before Blackwell, so that kernels start in their order."""
    text, place = read.environment.get(_CONNECTIONS, ("1", read.place))
    parallel = settings.tensor_model_parallel_size > 1 or settings.context_parallel_size > 1
    if not (text.isdigit() and text != "1" and parallel):
        return
    if settings.overlap_moe_expert_parallel_comm:
        return
    yield Finding(
        verdict=Verdict.NO_EFFECT,
        rule="device_max_connections",
        reason=f"Megatron-LM refuses {_CONNECTIONS}={text} with tensor or context parallelism on "
        "Hopper and older GPUs",
        fix=f"export {_CONNECTIONS}=1",
        source="Megatron-LM training/arguments.py validate_args",
        place=place,
    )
