"""What a shell knows while a script is read: variables, and which branches were taken."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.documents import read_text
from advisor.base.errors import UserError, show_path
from advisor.base.place import Place
from advisor.base.units import whole_number
from advisor.reading.words import Piece, Word, word

Values = tuple[Word, ...]


class Variable(Struct, frozen=True, kw_only=True):
    """A variable: one word, or the elements of an array. None: set, but to nobody knows what."""

    values: Values | None
    array: bool = False

    @property
    def certain(self) -> bool:
        """Whether the value is the same for everybody who runs the script."""
        return self.values is not None and all(value.certain for value in self.values)


UNKNOWN = Variable(values=None)


class State(Struct):
    """One way through a script.

    assumed: what conditions that are not known were taken to be, by their text.
    functions: bodies by name. ended: by `exit` or `return`. folder: of the script. declared: names
    that the text assigns somewhere: empty before, unless a file that is not read was sourced.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    branch: tuple[str, ...] = ()
    assumed: dict[str, bool] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    ended: str = ""
    depth: int = 0
    declared: set[str] = field(default_factory=set)
    sourced: bool = False
    folder: Path | None = None

    def copy(self) -> "State":
        """A state that goes another way from here."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            assumed=dict(self.assumed),
            functions=dict(self.functions),
        )

    def set(self, name: str, variable: Variable, *, export: bool = False) -> None:
        """Assign; what was assumed of the variable holds no more."""
        self.variables[name] = variable
        if export:
            self.exported.add(name)
        self.assumed = {text: truth for text, truth in self.assumed.items() if name not in text}

    def file(self, name: Word) -> Word | None:
        """The text of a file in the script's folder or where it is run, by the end of its name;
        None where it cannot be read."""
        known = max((n + 1 for n, piece in enumerate(name.pieces) if piece.unknown), default=0)
        text = "".join(piece.text for piece in name.pieces[known:]).lstrip("/")
        if self.folder is None or not text:
            return None
        found = [path for path in (self.folder / text, Path(text)) if os.path.isfile(path)]
        with suppress(UserError):
            return word(read_text(found[0]), Place(show_path(found[0]), 1, 1)) if found else None
        return None

    def environment(self) -> dict[str, Word]:
        """Exported variables with a value that is known."""
        known = ((name, self.variables.get(name)) for name in sorted(self.exported))
        return {name: one.values[0] for name, one in known if one is not None and one.values}


def doubted(variable: Variable) -> Variable:
    """The same value, of which it is no longer certain that it holds."""
    if variable.values is None:
        return variable
    doubts = ((replace(piece, certain=False) for piece in w.pieces) for w in variable.values)
    return replace(variable, values=tuple(Word(tuple(pieces)) for pieces in doubts))


def joined(states: Iterable[State], before: State) -> State:
    """One state of several ways: where they differ, `before`'s value is likely, or none is, as of
    what was empty or holds words."""
    ways = list(states)
    result = before.copy()
    for name in {name for way in ways for name in way.variables}:
        if len({_text(way.variables.get(name)) for way in ways}) == 1:
            result.variables[name] = ways[0].variables.get(name, UNKNOWN)
        else:
            known = before.variables.get(name)
            grown = known is None or known.array or not any(_text(known) or ())
            result.variables[name] = UNKNOWN if known is None or grown else doubted(known)
    for way in ways:
        result.exported |= way.exported
        result.functions |= way.functions
    return result


def _text(variable: Variable | None) -> tuple[str, ...] | None:
    if variable is None or variable.values is None:
        return None
    return tuple(value.text for value in variable.values)


def scalar(pieces: Iterable[Piece]) -> Variable:
    """A variable of one word."""
    return Variable(values=(Word(tuple(piece.splitting(False) for piece in pieces)),))


def appended(before: Variable | None, added: Variable) -> Variable:
    """`X+=value`: elements of an array, or characters of a word."""
    if added.values is None or (before is not None and before.values is None):
        return UNKNOWN
    if before is None or not before.values:
        return added
    if before.array or added.array:
        return Variable(values=(*before.values, *added.values), array=True)
    return scalar([piece for value in (*before.values, *added.values) for piece in value.pieces])


def fingerprint(variable: Variable) -> tuple[tuple[str, bool], ...]:
    """What tells two values of a variable apart."""
    if variable.values is None:
        return (("?", False),)
    return tuple((value.text, value.certain) for value in variable.values)


def positional(state: State) -> list[str]:
    """The names of a function's parameters that are set."""
    return [name for name in state.variables if name.isdigit() or name in ("@", "*")]


def set_positional(state: State, words: Sequence[Word]) -> None:
    """Set `$1`, `$2` and so on, and `$@`."""
    for number, w in enumerate(words, 1):
        state.variables[str(number)] = Variable(values=(w,))
    state.variables["@"] = state.variables["*"] = Variable(values=tuple(words), array=True)


def shift(state: State, words: Sequence[Word]) -> None:
    """`shift 2`; of a script's own parameters nothing is known before or after it."""
    known = state.variables.get("@")
    given = whole_number(words[0].text) if words else None
    count = 1 if given is None else given
    for name in positional(state):
        del state.variables[name]
    if known is not None and known.values is not None:
        set_positional(state, known.values[count:])
