"""`harness compare`: judge results against goldens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.fields import split_key_value
from advisor.report.command_help import read_page
from harness.api.comparing import compare
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge.golden import FOLDER
from harness.judge.render import render

COMMAND: Final = read_page(
    __file__, "compare", {flag: {"repeated": True} for flag in ("--golden", "--limit")}
)


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = Parser("compare", COMMAND, results="+").read(argv)
    comparison = compare(
        arguments.results,
        golden=existing(arguments.golden or [FOLDER], "compare"),
        limits=dict(parse_limit(text) for text in arguments.limit),
        allow_env_change=arguments.allow_env_change,
        allow_unmatched=arguments.allow_unmatched,
        exact_loss=arguments.exact_loss,
        strict=arguments.strict,
    )
    print(render(comparison), end="")
    return comparison.exit_code


def existing(paths: Sequence[Path], command: str) -> list[Path]:
    """Those of `paths` that are there or must be; of the others a line is printed."""
    there = [path for path in paths if path.exists() or path.suffix == ".json"]
    for path in (one for one in paths if one not in there):
        say(f"{path} does not exist, so there is no golden", command)
    return there


def parse_limit(text: str) -> tuple[str, float]:
    """``step_time_seconds=3%`` or ``=0.03`` as a metric and a relative limit."""
    name, amount = split_key_value(text, "--limit")
    scale = 0.01 if amount.endswith("%") else 1.0
    try:
        return name, float(amount.removesuffix("%")) * scale
    except ValueError:
        hint = "write e.g. step_time_seconds=3%"
        raise UserError("--limit", text, "is not METRIC=LIMIT", hint) from None
