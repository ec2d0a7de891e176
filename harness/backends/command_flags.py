"""How each framework is told a recompute setting: the words that take the placeholders' places."""

import base64
import re
import shlex
from typing import Final

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.base.errors import UserError, nearest_names
from advisor.frameworks.megatron.setting import parse_setting
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from harness.trial.trial import PLACEHOLDERS, placeholders, takes_setting

OTHER: Final = "other"
"""A framework that we have no flags for: {recompute} is the setting as the advisor spells it."""

_FLAGS: Final = load_yaml(packaged_configs() / "logs" / "recompute_flags.yaml").values
DIALECTS: Final = {Framework(name): re.compile(str(flags)) for name, flags in _FLAGS.items()}
"""What in a framework's command sets recompute, so that it would stand with what we put in."""


FRAMEWORKS: Final = (*DIALECTS, OTHER)
"""Names that ``framework=`` takes."""


def check_framework(name: str) -> None:
    """UserError where `name` is no framework that a command can be of."""
    if name not in FRAMEWORKS:
        relation = "is not supported with backend=command"
        raise UserError("framework", name, relation, nearest_names(name, FRAMEWORKS))


def check_template(template: str, framework: str) -> None:
    """UserError where the command cannot take a setting: one that is empty, that has a placeholder
    which nobody fills, that sets recompute itself, or of which nobody knows where the setting goes.
    """
    if not template.strip():
        example = "command='torchrun … pretrain_gpt.py … {recompute}'"
        raise UserError("command", "(none)", "must be the command that trains", example)
    for name in placeholders(template):
        if name not in PLACEHOLDERS:
            near = f"{nearest_names(name, PLACEHOLDERS)} (for literal braces write {{{{{name}}}}})"
            raise UserError("command", f"{{{name}}}", "is not a placeholder", near)
    if framework == OTHER:
        if not takes_setting(template):
            relation = "must contain {recompute}, where the harness inserts the setting"
            hint = f"or give framework={Framework.MEGATRON_LM}"
            raise UserError("command", template, relation, hint)
        return
    own = DIALECTS[Framework(framework)].search(template)
    if own is not None:
        relation = "would set the same recompute in every trial"
        raise UserError("command", own[0], relation, "leave it out, or write {recompute} instead")


def placeholder_texts(framework: str, spec: str, job: Job) -> tuple[str, ...]:
    """NAME=text of the placeholders; UserError where the framework has no words for `spec`."""
    if framework == OTHER:
        return (f"recompute={shlex.quote(spec)}", *_parts(spec), "layout=")
    stack = parts_of(Framework(framework))
    flags = stack.spelling.setting_flags(stack.settings.parse(spec), job)
    if flags.startswith("{"):  # a DeepSpeed configuration as scripts take it
        flags = f"--deepspeed_config {base64.urlsafe_b64encode(flags.encode()).decode()}"
    return (f"recompute={flags}", *_parts(spec), f"layout={stack.spelling.layout_flags(job)}")


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


def variables(framework: str, spec: str, job: Job) -> tuple[str, ...]:
    """NAME=value without which the framework refuses the setting, or runs otherwise."""
    if framework == OTHER:
        return ()
    stack = parts_of(Framework(framework))
    return stack.spelling.environment(stack.settings.parse(spec), job)
