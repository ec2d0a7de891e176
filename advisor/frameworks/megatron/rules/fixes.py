"""What a fix changes, for people who write Megatron's options and for those who write KEY=VALUE.

A rule's fix is words in which ``[name=value]`` gives an option a value (a list is separated by
spaces), ``[name]`` its default, and ``[>=0.16]`` means that release or a newer one. Ways are apart
by ``, or ``; what belongs to one way by ``and``.
"""

import re
from typing import Final

from advisor.base.fields import spelled
from advisor.base.record import defaults
from advisor.frameworks.megatron.options.table import PARTS, SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, releases
from advisor.frameworks.megatron.rules.stated import marked
from advisor.frameworks.names import Framework
from advisor.frameworks.option import number

MARK: Final = re.compile(r"\[(?:>=(?P<release>[\w.]+)|(?P<name>\w+)(?:=(?P<value>[^\]]*))?)\]")


_DEPENDENTS: Final = {
    "overlap_moe_expert_parallel_comm": "delay_wgrad_compute",
    "moe_expert_capacity_factor": "moe_pad_expert_input_to_capacity",
    "cuda_graph_impl": "enable_cuda_graph",
}


def with_dependents(fix: str, raw: RawSettings) -> str:
    """`fix`, which with an option drops what is set and needs it, or is its old spelling."""
    for name, other in _DEPENDENTS.items():
        if getattr(raw, other):
            fix = re.sub(rf"\[{name}(?:=[^\]]*)?\]", rf"\g<0> and {marked(other)}", fix)
    return fix


def in_options(fix: str, revision: Revision) -> str:
    """A fix in Megatron's own words: ``use cuda_graph_modules attn``, ``drop NAME``."""
    return MARK.sub(lambda mark: _option(mark, revision), fix)


def as_keys(fix: str, revision: Revision) -> str:
    """A fix as a request writes it: ``job.cuda_graph_modules=attn``, ``--framework-version 0.16``;
    in Megatron's own words where no KEY means the option. A framework without such a release gives
    way to Megatron-LM."""
    together = fix.replace("] and [", "] [")
    return MARK.sub(lambda mark: _key(mark, revision) or _option(mark, revision), together)


_OTHERWISE: Final = {"transformer_engine_version": "Transformer Engine"}


def _option(mark: re.Match[str], revision: Revision) -> str:
    if mark["release"]:
        if number(mark["release"]) == releases(Framework.MEGATRON_LM)[-1].number:
            return "use megatron-core main"
        return f"use megatron-core {mark['release']} or newer"
    row, value = SETTINGS[mark["name"]], mark["value"]
    name = _OTHERWISE.get(row.name) or row.name_in(revision)
    if value is None:
        return f"drop {name}"
    if row.kind is not bool:
        return f"use {name} {value}"
    return f"set {name}" if value == "true" else f"turn {name} off"


_OFF_BY_DEFAULT: Final = ("cross_entropy_loss_fusion", "fp8_param")
"""Options with a KEY of another name, whose default leaves them out."""


def _key(mark: re.Match[str], revision: Revision) -> str:
    """Empty where there is none."""
    if mark["release"]:
        known = releases(revision.framework)
        able = (one.version for one in known if one.number >= number(mark["release"]))
        version = next(able, None)
        return (
            f"--framework-version {version}" if version else f"--framework {Framework.MEGATRON_LM}"
        )
    row, value = SETTINGS[mark["name"]], mark["value"]
    part, _, field = row.ours.partition(".")
    dropped = value is None and row.name in _OFF_BY_DEFAULT
    if part not in PARTS or not (field == row.name or dropped):
        return ""
    if value is None:
        value = spelled(defaults(PARTS[part])[field])
    return f"{row.ours}={value.replace(' ', ',')}"
