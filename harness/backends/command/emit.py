"""How each framework is told a recompute setting: the words that take the placeholders' places."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from advisor.errors import UserError
from advisor.frameworks.megatron.bridge import bridge_layout_overrides, bridge_overrides
from advisor.frameworks.megatron.flags import environment, layout_flags, megatron_lm_flags
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import RecomputeSetting, parse_setting
from advisor.job import Job
from advisor.units import nearest_names
from harness.trial import takes_setting

OTHER: Final = "other"
"""A framework that we have no flags for: {recompute} becomes the setting as the advisor spells it,
and the log is recognised by its lines."""

Emitter = Callable[[RecomputeSetting, Job, Revision], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One framework. layout: the words for {layout}; sets: what in a command sets recompute, so
    that it would stand beside what we put in."""

    recompute: Emitter
    layout: Callable[[Job, Revision], str]
    sets: re.Pattern[str]


DIALECTS: Final = {
    "megatron_lm": Dialect(
        recompute=megatron_lm_flags,
        layout=layout_flags,
        sets=re.compile(
            r"--(?:recompute-[\w-]+|distribute-saved-activations|offload-modules"
            r"|fine-grained-activation-offloading|checkpoint-activations)\b"
        ),
    ),
    "megatron_bridge": Dialect(
        recompute=bridge_overrides,
        layout=bridge_layout_overrides,
        # flags of its performance scripts are applied after overrides, and win
        sets=re.compile(
            r"--recompute_\w+|(?<!\S)-(?:rl|ol)\b|--activation_offload_layers\b"
            r"|\bmodel\.(?:recompute_\w+|offload_modules|fine_grained_activation_offloading)="
        ),
    ),
}


def frameworks() -> tuple[str, ...]:
    """Names that ``framework=`` takes."""
    return (*DIALECTS, OTHER)


def check_framework(name: str) -> None:
    """UserError where `name` is no framework that a command can be of."""
    if name not in frameworks():
        raise UserError("framework", name, f"must be one of {', '.join(frameworks())}",
                        nearest_names(name, frameworks()))  # fmt: skip


def check_template(template: str, framework: str) -> None:
    """UserError where the command cannot take a setting: one that is empty, that sets recompute
    itself, or of which nobody knows where the setting goes."""
    if not template.strip():
        raise UserError("command", "(none)", "must be the command that trains",
                        "command='torchrun … pretrain_gpt.py … {recompute}'")  # fmt: skip
    dialect = DIALECTS.get(framework)
    if dialect is None:
        if not takes_setting(template):
            raise UserError("command", template, "must say where the setting goes: {recompute}",
                            f"or framework={next(iter(DIALECTS))}")  # fmt: skip
        return
    own = dialect.sets.search(template)
    if own is not None:
        raise UserError("command", own[0], "sets recompute itself, and would for every trial",
                        "leave it out, or write {recompute} in its place")  # fmt: skip


def words(framework: str, spec: str, job: Job, revision: Revision) -> tuple[str, ...]:
    """NAME=text of the placeholders; UserError where the framework has no words for `spec`."""
    dialect = DIALECTS.get(framework)
    if dialect is None:
        return (f"recompute={shlex.quote(spec)}", *_parts(spec), "layout=")
    setting = parse_setting(spec)
    recompute = dialect.recompute(setting, job, revision)
    return (f"recompute={recompute}", *_parts(spec), f"layout={dialect.layout(job, revision)}")


def _parts(spec: str) -> tuple[str, ...]:
    """The fields of a setting that Megatron has; empty where it does not have them."""
    try:
        setting = parse_setting(spec)
    except UserError:  # op:…, budget:…
        return ()
    return (
        f"granularity={setting.granularity}",
        f"modules={','.join(setting.effective_modules)}",
        f"method={setting.method or ''}",
        f"num_layers={setting.num_layers or ''}",
    )


def variables(framework: str, spec: str, job: Job, revision: Revision) -> tuple[str, ...]:
    """NAME=value without which the framework refuses the setting, or runs otherwise."""
    if framework not in DIALECTS:
        return ()
    return environment(parse_setting(spec), job, revision)
