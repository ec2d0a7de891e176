"""`advise diff 'REQUEST' 'REQUEST'` and `--against`: two requests answered and compared."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from advisor.api.answering import answer_to
from advisor.base.errors import UserError
from advisor.base.fields import key_of
from advisor.cli.arguments import (
    OutputFormat,
    RankingOptions,
    UsageError,
    format_of,
    parse,
    parser_of,
    refuse_more_than_a_request,
)
from advisor.cli.outcome import Outcome

if TYPE_CHECKING:
    from advisor.answer.advice import Advice

_T = TypeVar("_T")
_R = TypeVar("_R")
_RELEASE: Final = re.compile(r"[\w.]+")
_FORMATS: Final = (OutputFormat.TABLE, OutputFormat.JSON)


def diff(arguments: Sequence[str]) -> Outcome:
    """`advise diff 'REQUEST' 'REQUEST'`; UserError or UsageError where one of them is wrong."""
    namespace, requests = parser_of("diff").parse_known_args(list(arguments))
    if len(requests) != 2:
        raise UsageError(
            "diff: needs two REQUESTs, each in quotes, e.g. "
            "advise diff '--model llama3_70b --gpus 32xH100' '--model llama3_70b --gpus 32xH200'"
        )
    first, second = (words_of(text) for text in requests)
    if first and not _names_a_job(second):
        line = shlex.join(["advise", *first, "--against", requests[1]])
        raise UsageError(f"diff: the second REQUEST has no --model; to change the first: {line}")
    output = namespace.output or format_of(namespace.written)
    named = "first REQUEST", "second REQUEST"
    return _compared((first, second), named, output, namespace.written)


def against(arguments: Sequence[str], options: RankingOptions) -> Outcome:
    """`--against`: a release of the request's framework, flags that change it, or another one."""
    words, other = _without(arguments, "--against"), options.against or ""
    for flag in ("--format", "-o", "--output"):
        words = _without(words, flag)
    if _RELEASE.fullmatch(other):
        changed = [*_without(words, "--framework-version"), "--framework-version", other]
    else:
        changed = words_of(other)
        if not _names_a_job(changed):
            again = "--recompute" in map(key_of, changed)
            changed = [*(_without(words, "--recompute") if again else words), *changed]
    return _compared((words, changed), ("", "--against"), options.output, options.written)


def _names_a_job(words: Sequence[str]) -> bool:
    return not set(map(key_of, words)).isdisjoint(("--model", "--from"))


def words_of(text: str) -> list[str]:
    """The words of a request, with or without ``advise``; UsageError where a quote is open."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from None
    return words[1:] if words[:1] == ["advise"] else words


def _without(words: Sequence[str], flag: str) -> list[str]:
    """`words` less a flag and its value, however often and in whichever spelling."""
    kept, left = [], iter(words)
    joined = f"{flag}=" if flag.startswith("--") else flag
    for word in left:
        if word == flag:
            next(left, None)
        elif not word.startswith(joined):
            kept.append(word)
    return kept


def _compared(
    requests: tuple[Sequence[str], Sequence[str]],
    named: tuple[str, str],
    output: OutputFormat,
    path: Path | None,
) -> Outcome:
    """The outcome of two requests; `named`: what an error calls each."""
    from advisor.answer.difference import difference
    from advisor.cli.writing import check_output, into_file

    if output not in _FORMATS and path is not None and output is format_of(path):
        relation = f"cannot be {output}: a comparison is a table or json"
        raise UserError("-o", path, relation, "write e.g. -o diff.json")
    if output not in _FORMATS:
        relation = "cannot be combined with two requests"
        raise UserError("--format", output, relation, "use --format table or json")
    check_output(path, output)
    checked = [_said_of(name, _checked, one) for name, one in zip(named, requests, strict=True)]
    first, second = (_said_of(name, _advice, one) for name, one in zip(named, checked, strict=True))
    found = difference(first, second, (shlex.join(requests[0]), shlex.join(requests[1])))

    def render() -> str:
        if output is OutputFormat.JSON:
            return found.to_json()
        from advisor.report.difference_page import difference_page
        from advisor.report.text import on_screen

        return on_screen(difference_page(found))

    return Outcome(text=render()) if path is None else into_file(Outcome(), path, render)


def _said_of(name: str, step: Callable[[_T], _R], one: _T) -> _R:
    """`step` of `one`; an error begins with `name`."""
    try:
        return step(one)
    except (UserError, UsageError) as error:
        raise UsageError(f"{name}: {error}" if name else str(error)) from None


def _checked(words: Sequence[str]) -> RankingOptions:
    """Options of a request, which says nothing of how it is shown; UserError where it does."""
    options = parse(words)
    refuse_more_than_a_request(options, "two requests")
    return options


def _advice(options: RankingOptions) -> "Advice":
    """The answer as far as the row that it chooses."""
    from msgspec.structs import replace

    from advisor.report.plain_advice import plain_advice

    answer = answer_to(replace(options.request, quick=True))
    best = answer.chosen
    return plain_advice(answer, top=best.rank if best else None)
