"""The command line of `advise`: what its flags accept, and the options they give."""

import argparse
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgspec import Struct

from advisor.api.asked_files import AskedFiles, PlotKind
from advisor.base.errors import UserError
from advisor.base.fields import key_of
from advisor.cli.help import RANKING, SUBCOMMANDS
from advisor.report.command_help import CommandHelp, Flag, FlagKind
from advisor.request.request import Quantity, Request, SearchScope

if TYPE_CHECKING:
    from advisor.reading.read_configuration import ReadConfiguration

_MAX_DIGITS: Final = 12
_NEGATIVE: Final = re.compile(r"-\.?\d")


class OutputFormat(StrEnum):
    """`--format`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    FLAGS = "flags"
    FILE = "file"
    HTML = "html"


class UsageError(Exception):
    """A command line that cannot be read; the message is one line without the program's name."""


class RankingOptions(AskedFiles, frozen=True, kw_only=True):
    """One `advise` command: the request, and how to show its answer.

    `top` None: the ten best that are not folded on a page, all in JSON and CSV. `front`: the Pareto
    front alone. `explain` is a rank, 0 the row that the first sentence names; `verify` how many to
    rehearse. `against`: what it is compared with. `read`: what `--from` took the job from.
    `prices`: of a GPU-hour, as many as were given.
    """

    request: Request
    output: OutputFormat = OutputFormat.TABLE
    top: int | None = None
    front: bool = False
    price_per_gpu_hour: float | None = None
    prices: tuple[float, ...] = ()
    solve: Quantity | None = None
    show_rejected: bool = False
    explain: int | None = None
    verify: int | None = None
    against: str | None = None
    read: "ReadConfiguration | None" = None
    arguments: tuple[str, ...] = ()


def parse(arguments: Sequence[str]) -> RankingOptions:
    """Options of a ranking; UsageError or UserError where the line cannot be read."""
    namespace, extras = _with_flags("advise", RANKING).parse_known_args(list(arguments))
    values: dict[str, Any] = vars(namespace)
    overrides = (*values.pop("overrides", ()), *_overrides(extras))
    source = values.pop("source", None)
    for field, flag, example in (("model", "--model", "llama3_70b"), ("gpus", "--gpus", "32xH100")):
        if values.get(field) is None and source is None:
            raise UsageError(f"{flag}: is missing; write e.g. {flag} {example}")
    wanted = set(Request.__struct_fields__)
    request = {k: v for k, v in values.items() if k in wanted and v is not None}
    request["overrides"] = overrides
    shown = {k: v for k, v in values.items() if k not in wanted and v is not None}
    shown["arguments"] = tuple(arguments)
    shown["prices"] = shown.pop("price_per_gpu_hour", ())
    if len(shown["prices"]) == 1:
        shown["price_per_gpu_hour"] = shown["prices"][0]
    shown.setdefault("output", format_of(shown.get("written")))
    if source is None:
        return RankingOptions(request=Request(**request), **shown)
    from advisor.lint.request_from import read_job

    try:
        job = read_job(source, request)
    except UserError:
        if values.get("solve") != "gpus" or not request.get("gpus", "")[:1].isalpha():
            raise
        job = read_job(source, request | {"gpus": f"8x{request['gpus']}"})  # any number will do
    return RankingOptions(request=job.request, read=job.configuration, **shown)


_OF_A_REQUEST: Final = ("request", "read", "output", "arguments")
_SPELLED: Final = {"written": "-o"}


def refuse_more_than_a_request(options: RankingOptions, what: str) -> None:
    """UserError where options say how an answer is shown; `what` shows it another way."""
    usual = RankingOptions(request=options.request)
    for name in RankingOptions.__struct_fields__:
        if name not in _OF_A_REQUEST and getattr(options, name) != getattr(usual, name):
            flag = _SPELLED.get(name) or f"--{name.replace('_', '-')}"
            raise UserError(flag, None, f"cannot be combined with {what}", "leave it out")


def words_alone(arguments: Sequence[str]) -> list[str]:
    """Words of a request that are no flag and no value of one."""
    extras = _with_flags("advise", RANKING).parse_known_args(list(arguments))[1]
    return [word for word in extras if not word.startswith("-")]


def format_of(path: Path | None) -> OutputFormat:
    """The format of an answer that goes to `path` (None: stdout) where no other is asked for."""
    named = path.suffix.lower().removeprefix(".") if path else ""
    return OutputFormat(named) if named in ("html", "json", "csv") else OutputFormat.TABLE


def parse_config_dir(command: str, arguments: Sequence[str]) -> Path | None:
    """`--config-dir` of a command that lists names; UsageError for anything else."""
    namespace, extras = parser_of(command).parse_known_args(list(arguments))
    if extras:
        raise UsageError(f"{command}: {extras[0]}: is not accepted; use only --config-dir DIR")
    folder: Path | None = namespace.config_dir
    return folder


class RulesOptions(Struct, frozen=True, kw_only=True):
    """`advise rules | keys`: of which framework, which release, and a word that they must have."""

    framework: str | None = None
    framework_version: str | None = None
    word: str = ""


def parse_rules(arguments: Sequence[str], command: str = "rules") -> RulesOptions:
    """Options of `advise rules` and `advise keys`; UsageError or UserError of a wrong line."""
    namespace, words = parser_of(command).parse_known_args(list(arguments))
    if len(words) > 1 or any(word.startswith("-") for word in words):
        flags = ", ".join(flag.names[0] for flag in SUBCOMMANDS[command].flags)
        wrong = next((word for word in words if word.startswith("-")), words[-1])
        raise UsageError(f"{command}: {wrong}: is not accepted; use only {flags} and one WORD")
    return RulesOptions(**vars(namespace), word="".join(words))


def parser_of(subcommand: str) -> argparse.ArgumentParser:
    """The flags of a subcommand."""
    return _with_flags(f"advise {subcommand}", SUBCOMMANDS[subcommand])


def _with_flags(prog: str, command: CommandHelp) -> argparse.ArgumentParser:
    # for the names in errors: without a width argparse would load shutil
    names = partial(argparse.HelpFormatter, width=80)
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False, formatter_class=names)
    for flag in command.flags:
        parser.add_argument(*flag.names, dest=flag.name, **_reading(flag))
    return parser


def _reading(flag: Flag) -> dict[str, Any]:
    if flag.kind is FlagKind.SWITCH:
        on = not flag.names[0].startswith("--no-")
        both = flag.name == "sequence_parallel"
        return {"action": "store_true" if on else "store_false", "default": None if both else False}
    nargs = {"nargs": "?"} if flag.kind is FlagKind.OPTIONAL else {}
    return {"action": _Value, "flag": flag, **nargs}


def _overrides(extras: Sequence[str]) -> tuple[str, ...]:
    """What is left is KEY=VALUE, or a flag or a word that is not known."""
    for extra in extras:
        if (name := key_of(extra)).startswith("-"):
            flags = (spelling for flag in RANKING.flags for spelling in flag.names)
            near = _nearest(name, [*flags, "--help", "--version"])
            hint = f"did you mean {near}?" if near else "advise --help lists them"
            raise UsageError(f"{name}: is not a flag; {hint}")
        if "=" not in extra:
            near = _nearest(extra, list(SUBCOMMANDS))
            hint = f"; did you mean {near}?" if near else ", e.g. model.num_layers=12"
            raise UsageError(f"{extra}: is neither a command nor KEY=VALUE{hint}")
    return tuple(extras)


def _nearest(name: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, 1, 0.6)), None)


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors: no usage, no exit. What begins like a negative number is a
    value (``--memory-budget -3GiB``), and told to be a wrong one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._negative_number_matcher = _NEGATIVE

    def error(self, message: str) -> NoReturn:
        # "argument --tp/--tensor-model-parallel-size: expected one argument"
        names, found, rest = message.removeprefix("argument ").partition(": ")
        if not found:
            raise UsageError(message)
        if rest == "expected one argument":
            rest = "needs a value"
        elif rest.startswith("ignored explicit argument"):
            rest = "takes no value"
        raise UsageError(f"{names.partition('/')[0]}: {rest}")


class _Value(argparse.Action):
    """The value of a flag as what it means; of a repeated flag all of them. KEY=VALUE after a flag
    that needs no value is left an override."""

    def __init__(self, *, flag: Flag, **options: Any) -> None:
        super().__init__(**options)
        self._flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        earlier = getattr(namespace, self.dest)
        found: Any = self._flag.default
        if self._flag.kind is FlagKind.OPTIONAL and values is not None and "=" in values:
            namespace.overrides = (*getattr(namespace, "overrides", ()), values)
        elif values is not None:
            found = _meant(self._flag, values, option or self.dest)
        if self._flag.repeated:
            found = (*(earlier or ()), found)
        elif self.dest in _ONE_ALONE and earlier not in (None, found):
            relation = f"cannot be combined with {option} {earlier}"
            raise UserError(f"{option}", values, relation, "give one")
        setattr(namespace, self.dest, found)


def _meant(flag: Flag, text: str, option: str) -> Any:
    """What `text` means after a flag that is spelled `option`; UserError where that is nothing."""
    match flag.kind:
        case FlagKind.NUMBER | FlagKind.OPTIONAL:
            return positive(option, text)
        case FlagKind.DECIMAL:
            return _decimal(option, text, flag)
        case FlagKind.CHOICE:
            return _choice(option, text, flag)
    if not text.strip():
        raise UserError(option, repr(text), "must not be empty")
    if flag.kind not in (FlagKind.FILE, FlagKind.FOLDER) or flag.name == "source":
        return text
    return None if flag.name == "written" and text == "-" else Path(text)


def _decimal(option: str, text: str, flag: Flag) -> float | tuple[float, ...]:
    """A certainty, which the job checks; or a price for all GPUs, or one for each type."""
    certainty = flag.name == "certainty"
    try:
        values = tuple(map(float, [text] if certainty else text.split(",")))
    except ValueError:
        example = f"write e.g. {option} {'0.95' if certainty else '2.5'}"
        raise UserError(option, text, "is not a decimal number", example) from None
    if certainty:
        return values[0]
    from advisor.api.answering import checked_price

    return tuple(checked_price(value, option) for value in values)


def _choice(option: str, text: str, flag: Flag) -> Any:
    """One of an enum's strings, upper or lower case; the enum is imported when it is needed."""
    from advisor.base.errors import nearest_names

    names = [str(name) for name in flag.choices or choices(flag.name)]
    if text.lower() not in names:
        raise UserError(option, text, "is unknown", nearest_names(text, names))
    return _ENUMS.get(flag.name, str)(text.lower())


_ONE_ALONE: Final = ("search", "against", "solve")  # each is a search, or a comparison, of its own
_ENUMS: Final[dict[str, type[StrEnum]]] = {
    "output": OutputFormat,
    "search": SearchScope,
    "solve": Quantity,
    "plot_kind": PlotKind,
}


def choices(field: str) -> list[Any]:
    """The strings that a flag of this field takes."""
    if field in _ENUMS:
        return list(_ENUMS[field])
    if field == "precision":
        from advisor.base.dtypes import Precision

        return list(Precision)
    from advisor.frameworks.registry import framework_names

    return list(framework_names())


def positive(flag: str, text: str) -> int:
    """The number that `text` writes; UserError unless it is a whole one of at least 1."""
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise UserError(flag, text, "is not a whole number", f"write e.g. {flag} 1")
    if len(digits) > _MAX_DIGITS:
        raise UserError(flag, text, "is too large")
    if int(text) < 1:
        raise UserError(flag, text, "must be at least 1")
    return int(text)
