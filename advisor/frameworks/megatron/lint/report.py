"""The findings of `advise lint`, with levels."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.frameworks.megatron.lint.command_line import read_command_line, read_tokens
from advisor.frameworks.megatron.lint.given import Given
from advisor.frameworks.megatron.lint.yaml_config import read_yaml
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.frameworks.megatron.rules import Authority, Finding, Verdict, find
from advisor.frameworks.names import Framework


class Level(StrEnum):
    """How bad a finding is: nothing trains, something is for nothing, or it is good to know."""

    ERROR = "ERROR"
    WARNING = "WARNING"
    NOTE = "NOTE"


def level_of(finding: Finding) -> Level:
    """ERROR for what is refused, crashes or hangs; WARNING for what does or buys nothing, or runs
    more than is written."""
    if finding.verdict.illegal:
        return Level.ERROR
    return Level.NOTE if finding.verdict is Verdict.NOTE else Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Findings on one target, worst first; `settings` is what was understood of it."""

    target: str
    revision: Revision
    settings: RawSettings
    findings: tuple[Finding, ...]

    @property
    def illegal(self) -> bool:
        """Whether anything is refused, crashes or hangs."""
        return any(finding.verdict.illegal for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 where there is an error or a warning, 0 where there are at most notes."""
        return int(any(level_of(finding) is not Level.NOTE for finding in self.findings))


def lint_target(target: str | Sequence[str], framework_version: str | None = None) -> LintReport:
    """Check a file (shell script or YAML), a command line, or its already split words.

    The framework is read off the input: NeMo for activations_checkpoint_* and `model.config.X`,
    Megatron Bridge for any other `model:` mapping or `model.X=Y`, Megatron-LM otherwise;
    `framework_version` is that framework's, by default the one that the keys tell or the newest.
    Raises UserError where the input cannot be read or holds no setting of Megatron.
    """
    given, name = _read(target)
    if not given.values and not given.unresolved:
        raise UserError(
            "lint",
            name,
            "holds no setting of Megatron",
            "give flags, a launch script or a YAML configuration",
        )
    revision = resolve_revision(given.framework, framework_version or given.version)
    settings, launcher_findings = _as_launched(given, revision)
    found = (*launcher_findings, *find(settings, revision))
    order = list(Level)
    findings = tuple(sorted(found, key=lambda finding: order.index(level_of(finding))))
    return LintReport(target=name, revision=revision, settings=settings, findings=findings)


def _read(target: str | Sequence[str]) -> tuple[Given, str]:
    words = [target] if isinstance(target, str) else list(target)
    if len(words) != 1:
        return read_tokens(words), "command line"
    text = words[0]
    if len(text) < 4096 and "\n" not in text and os.path.exists(text):
        return _read_file(Path(text)), text
    if "=" not in text and not text.lstrip().startswith("-") and not {" ", "\n"} & set(text):
        raise UserError("lint", text, "is no file and holds no flags")
    return read_command_line(text), "command line"


def _read_file(path: Path) -> Given:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise UserError("lint", path, f"cannot be read: {reason}") from None
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text, str(path))
    return read_command_line(text)


def _as_launched(given: Given, revision: Revision) -> tuple[RawSettings, list[Finding]]:
    """What Megatron-LM's argument check makes of the settings before the configuration sees them.

    Source: megatron-core 0.19.2 training/arguments.py:589, 615-622, 1391-1399.
    """
    settings = given.settings()
    findings = [
        _note(
            "shell_variable",
            f"the value of {where} is a shell variable and is not checked",
            "lint the flags as they are run",
            "",
        )
        for where in given.unresolved
    ]
    findings += [
        Finding(
            rule="stray_word",
            verdict=Verdict.REFUSED,
            authority=Authority.LAUNCHER,
            reason=f"{words}: the option takes no value",
            fix="drop the word behind it",
            source="argparse",
            raises="SystemExit: unrecognized arguments",
        )
        for words in given.stray
    ]
    if revision.framework == Framework.MEGATRON_LM:
        findings += _spelling_findings(given, revision)
        if settings.sequence_parallel and settings.tensor_model_parallel_size == 1:
            settings = replace(settings, sequence_parallel=False)
            findings.append(
                _note(
                    "sequence_parallel_disabled",
                    "sequence_parallel is switched off: tensor_model_parallel_size is 1",
                    "drop --sequence-parallel",
                    f"megatron-core {revision.read_at} training/arguments.py",
                )
            )
    return settings, findings


_NEW_SPELLING: Final = "--cuda-graph-modules"
_OLD_SPELLING: Final = "--cuda-graph-scope"


def _spelling_findings(given: Given, revision: Revision) -> list[Finding]:
    source = f"megatron-core {revision.read_at} training/arguments.py"
    renamed = revision.at_least(0, 18)
    if _NEW_SPELLING in given.spellings and not renamed:
        return [
            Finding(
                rule="cuda_graph_spelling",
                verdict=Verdict.REFUSED,
                authority=Authority.LAUNCHER,
                reason=f"{revision.label} has no {_NEW_SPELLING}",
                fix=f"write {_OLD_SPELLING}",
                source=source,
                raises="SystemExit: unrecognized arguments",
            )
        ]
    if _OLD_SPELLING in given.spellings and renamed:
        return [
            _note(
                "cuda_graph_spelling",
                f"{_OLD_SPELLING} is deprecated in {revision.label}",
                f"write {_NEW_SPELLING}",
                source,
            )
        ]
    return []


def _note(rule: str, reason: str, fix: str, source: str) -> Finding:
    return Finding(
        rule=rule,
        verdict=Verdict.NOTE,
        authority=Authority.LAUNCHER,
        reason=reason,
        fix=fix,
        source=source,
    )


def understood(settings: RawSettings) -> str:
    """The recompute fields in a few words, as Megatron understands them."""
    if settings.selective or settings.moe_layer_recompute:
        return f"selective recompute of {', '.join(settings.recomputed_modules) or 'nothing'}"
    if settings.recompute_granularity is None:
        return "no recompute"
    method, number = settings.recompute_method, settings.recompute_num_layers
    how = "no method" if method is None else method
    many = "no number of layers" if number is None else f"{number} layer{'s' * (number != 1)}"
    return f"{settings.recompute_granularity} recompute, {how}, {many}"
