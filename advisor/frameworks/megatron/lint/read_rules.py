"""Rules on how settings are written: variables of the environment, spellings, words of a shell.

Source: megatron-core 0.16.1 core/models/common/language_module/language_module.py:98-126; 0.19.2
training/arguments.py:1854-1887.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Final

from advisor.base.place import Place
from advisor.base.rule import Match, Rule, rows_of, rules_of
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.names import Framework
from advisor.reading.read_configuration import expandable_segments

_CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
_SWITCHES: Final = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
_BACKENDS: Final = {"flash": "100", "fused": "010", "unfused": "001", "local": "000", "auto": "111"}
"""Their values for each backend."""
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


class _ReadRule(Rule[[ReadSettings, RawSettings, Revision]], frozen=True, kw_only=True):
    """A rule on settings as they are written and launched in a release."""

    names: ClassVar[tuple[str, ...]] = ("read", "settings", "revision")


def _arguments(revision: Revision, place: Place) -> Match:
    return Match(source=f"megatron-core {revision.read_at} training/arguments.py", place=place)


def _switched_off(read: ReadSettings, settings: RawSettings, revision: Revision) -> Match | None:
    asked = revision.framework == Framework.MEGATRON_LM and read.given.values.get(_SP)
    if not asked or settings.sequence_parallel:
        return None
    return _arguments(revision, read.places[_SP])


def _spelling(
    flag: str, renamed: bool, read: ReadSettings, _: RawSettings, revision: Revision
) -> Match | None:
    """A spelling of the modules of CUDA graphs, before or after they were renamed."""
    launched = revision.framework == Framework.MEGATRON_LM and flag in read.given.spellings
    if not launched or revision.at_least(0, 18) != renamed:
        return None
    return _arguments(revision, read.places.get("cuda_graph_modules", read.place))


def _contradicted(read: ReadSettings, settings: RawSettings, _: Revision) -> Iterator[Match]:
    """What an exported variable contradicts."""
    for name, value in zip(_SWITCHES, _BACKENDS.get(settings.attention_backend, ""), strict=False):
        text, place = read.environment.get(name, ("", read.place))
        if text in ("0", "1") and text != value:
            yield Match(found={"name": name, "text": text, "value": value}, place=place)


def _several_connections(read: ReadSettings, settings: RawSettings, _: Revision) -> Match | None:
    """TP and CP want one connection before Blackwell, so that kernels start in their order."""
    text, place = read.environment.get(_CONNECTIONS, ("1", read.place))
    parallel = settings.tensor_model_parallel_size > 1 or settings.context_parallel_size > 1
    others = settings.overlap_moe_expert_parallel_comm or settings.use_megatron_fsdp
    applies = parallel and not others
    return Match(found=text, place=place) if applies and text.isdigit() and text != "1" else None


def _one_connection(read: ReadSettings, settings: RawSettings, _: Revision) -> Match | None:
    text, place = read.environment.get(_CONNECTIONS, ("", read.place))
    return Match(place=place) if settings.use_megatron_fsdp and text == "1" else None


_SP: Final = "sequence_parallel"

READ_RULES: Final = rules_of(
    _ReadRule,
    rows_of("megatron.json")["lint"],
    {
        "shell_variable": lambda read, _, __: (
            Match(found=where, place=read.places[name])
            for name, where in read.given.unresolved.items()
        ),
        "shell_words": lambda read, _, __: (
            Match(found=text, place=place) for text, place in read.unknown
        ),
        "sequence_parallel_disabled": _switched_off,
        "cuda_graph_spelling": partial(_spelling, "--cuda-graph-modules", False),
        "attention_environment": _contradicted,
        "fsdp_connections": _one_connection,
        "device_max_connections": _several_connections,
    },
)
DEPRECATED: Final = rules_of(
    _ReadRule,
    rows_of("megatron.json")["lint.deprecated"],
    {"cuda_graph_spelling": partial(_spelling, "--cuda-graph-scope", True)},
)
