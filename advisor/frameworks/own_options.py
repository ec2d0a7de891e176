"""Options of a job that only some frameworks have: refused for the others, with who has them."""

from collections.abc import Collection
from typing import ClassVar, Final

from msgspec import json

from advisor.base.configuration import packaged_configs
from advisor.base.record import defaults
from advisor.base.rule import Rule, refuse
from advisor.job.job import JobConfig

_DEFAULTS: Final = defaults(JobConfig)


class _OptionRule(Rule[[JobConfig, str]], frozen=True, kw_only=True):
    """A rule on an option of a job that a framework has not."""

    names: ClassVar[tuple[str, ...]] = ("job", "framework")


def _asks(config: JobConfig, option: str) -> bool:
    if option in ("optimizer", "quantized_adam"):
        return config.optimizer.is_muon if option == "optimizer" else config.optimizer.is_quantized
    record, _, key = option.rpartition(".")
    given, usual = getattr(config, record or key), _DEFAULTS[record or key]
    if record:  # a key of a group
        given, usual = getattr(given, key), getattr(usual, key)
    return bool(given != usual)


def _rule(option: str, reason: str, fix: str) -> _OptionRule:
    field = "optimizer" if option == "quantized_adam" else option
    return _OptionRule.on(f"job.{field}", lambda job, _: _asks(job, option), reason, fix)


_FILE: Final = packaged_configs() / "rules" / "own_options.json"
_RULES: Final = {
    option: _rule(option, row["says"], row["fix"])
    for row in json.decode(_FILE.read_bytes())
    for option in row["options"]
}


def refuse_options(config: JobConfig, framework: str, has: Collection[str]) -> None:
    """Raise UserError on the first option of `config` that `framework` has not."""
    refuse((one for option, one in _RULES.items() if option not in has), config, framework)
