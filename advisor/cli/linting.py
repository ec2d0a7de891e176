"""`advise lint`: FILEs or FLAGS checked, fixed where that is asked, and printed in a format."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from advisor.base.errors import UserError
from advisor.base.output_file import write_over
from advisor.cli.arguments import LintFormat, UsageError
from advisor.cli.outcome import Outcome
from advisor.lint.target import LintReport, NothingToLintError, lint_target


def lint(flags: Namespace, words: Sequence[str]) -> Outcome:
    """The findings in `words`; UserError where a file cannot be read and is not passed over."""
    output, fixes = flags.lint_format or LintFormat.TEXT, flags.fix or flags.diff
    files = [word for word in words if not word.startswith("-") and "=" not in word]
    several = len(files) == len(words) and any(Path(word).is_file() for word in words)
    if fixes and not several:
        raise UsageError(f"lint: --{'fix' if flags.fix else 'diff'}: needs a FILE")
    reports: list[LintReport] = []
    diffs, talk = "", []
    for target in dict.fromkeys(words) if several else [words[0] if len(words) == 1 else words]:
        try:
            report, diff = (
                _checked(target, flags)
                if fixes
                else (lint_target(target, flags.framework_version), "")
            )
        except UserError as error:
            unknown = isinstance(error, NothingToLintError) and len(words) > 1
            if not several or not (unknown or (flags.skip_unknown and Path(target).is_file())):
                raise
            talk.append(f"advise: skipped: {error}")
            continue
        reports.append(report)
        diffs += diff
    code = max([int(bool(diffs and flags.diff)), *(report.exit_code for report in reports)])
    if output is LintFormat.TEXT:
        from advisor.report.lint_page import lint_page
        from advisor.report.text import on_screen

        pages = [on_screen(lint_page(one, fixed=fixes)) for one in reports]
        return Outcome(
            text="\n".join(filter(None, (diffs, *pages))), exit_code=code, talk=tuple(talk)
        )
    from advisor.report.lint_formats import FORMATS, linted

    return Outcome(
        text=FORMATS[output](linted(reports)), exit_code=code, talk=(*talk, *diffs.splitlines())
    )


def _checked(target: str, flags: Namespace) -> tuple[LintReport, str]:
    """What is left of a file's findings, and what was changed; written where `--fix` asks."""
    from advisor.lint.fix import fixed

    found = fixed(Path(target), flags.framework_version)
    if flags.fix and not flags.diff and found.diff:
        try:
            write_over(Path(target), found.after)
        except OSError as error:
            raise UserError("--fix", target, f"cannot be written: {error.strerror}") from None
    return found.report, found.diff
