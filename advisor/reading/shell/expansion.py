"""Words of a shell text: quotes, variables with their defaults, arrays and arithmetic."""

import ast
import operator
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from advisor.base.limits import MOST_COMMAND, MOST_VALUE
from advisor.base.place import Place
from advisor.base.units import whole_number
from advisor.reading.shell.state import State, Variable, scalar
from advisor.reading.words import Piece, Word, split_words

if TYPE_CHECKING:
    from tree_sitter import Node

_PARAMETER: Final = re.compile(
    r"\$\{(?P<prefix>[!#]?)(?P<name>\w+|[@*#?])(?P<index>\[[^\]]*\])?(?P<rest>.*)\}", re.DOTALL
)
_OPERATOR: Final = re.compile(r":?[-=+?]")
_ESCAPED_IN_QUOTES: Final = '$`"\\'
_ALL: Final = ("[@]", "[*]")
_CONTINUED: Final = re.compile(rb"[\x80-\xbf]")
"""Bytes of UTF-8 that begin no character."""


class TooLongError(ValueError):
    """A value, or the words of a command, beyond what is followed."""

    def __init__(self, most: int) -> None:
        super().__init__(f"is longer than {most:,} characters: not expanded")


def bounded(pieces: Iterable[Piece | None], most: int = MOST_VALUE) -> Iterator[Piece | None]:
    """The same pieces; TooLongError beyond `most` characters, and one for the end of each piece."""
    size = 0
    for piece in pieces:
        size += 1 + len(piece.text) if piece is not None else 1
        if size > most:
            raise TooLongError(most)
        yield piece


class Source:
    """A text that is read as shell, with the place of each of its characters."""

    def __init__(self, content: Word) -> None:
        self.content = content
        self._bytes = content.text.encode()
        self._continued = [match.start() for match in _CONTINUED.finditer(self._bytes)]

    def text(self, node: "Node") -> str:
        """What stands in the script."""
        return self._bytes[self.start(node) : node.end_byte].decode(errors="ignore")

    def start(self, node: "Node") -> int:
        """Where a node begins: the grammar gives the second of `"$A $B"` the space before it."""
        at = node.start_byte
        if node.type in ("simple_expansion", "expansion"):
            at = max(at, self._bytes.find(b"$", at, node.end_byte))
        return at

    def between(self, start: int, stop: int) -> str:
        """What stands between two bytes."""
        return self._bytes[start:stop].decode(errors="ignore")  # a quote that is missing

    def place(self, node: "Node") -> Place:
        """Where a node begins."""
        return self.content.place_at(self.offset(self.start(node)))

    def offset(self, byte: int) -> int:
        """Characters before a byte."""
        return byte - bisect_left(self._continued, byte)

    def pieces(self, start: int, stop: int) -> tuple[Piece, ...]:
        """Characters between two bytes, with their places."""
        return self.content.part(self.offset(start), self.offset(stop)).pieces


def check_length(variable: Variable) -> None:
    """TooLongError where a variable holds more than is followed."""
    for _ in bounded(piece for value in variable.values or () for piece in value.pieces):
        pass


class Expander:
    """Expands the words of one source in one state."""

    def __init__(self, source: Source, state: State) -> None:
        self.source = source
        self.state = state

    def expanded(self, nodes: Sequence["Node"]) -> list[Word]:
        """The words that `nodes` become; none of a variable that is empty, several of an array."""
        ended = chain.from_iterable((self.pieces(node), (None,)) for node in nodes)
        return list(split_words(bounded(chain.from_iterable(ended), MOST_COMMAND)))

    def scalar(self, node: "Node") -> tuple[Piece, ...]:
        """What a node becomes where nothing splits, as after `X=`."""
        pieces = [piece.splitting(False) for piece in self._joined(node)]
        return tuple(pieces) or (Piece(text="", place=self.source.place(node)),)

    def _joined(self, node: "Node") -> Iterator[Piece]:
        """The pieces of a node, a space where one word would end."""
        between = False
        for piece in bounded(self.pieces(node)):
            if piece is None:
                between = True
                continue
            if between:
                yield Piece(text=" ", place=piece.place)
            between = False
            yield piece

    def pieces(self, node: "Node", *, quoted: bool = False) -> Iterator[Piece | None]:
        """Pieces of one node; None between the elements of an array."""
        match node.type:
            case "string":
                yield Piece(text="", place=self.source.place(node))
                yield from self._string(node)
            case "raw_string":
                yield Piece(text="", place=self.source.place(node))
                yield from self._literal(node.start_byte + 1, node.end_byte - 1)
            case "ansi_c_string" | "translated_string":
                yield from self._literal(node.start_byte + 2, node.end_byte - 1)
            case "simple_expansion":
                name = self.source.text(node).removeprefix("$")
                yield from self._variable(node, name, "", quoted=quoted)
            case "expansion":
                yield from self._expansion(node, quoted=quoted)
            case "arithmetic_expansion":
                yield from self._arithmetic(node)
            case "command_substitution" | "process_substitution":
                yield from self._substitution(node, quoted=quoted)
            case "comment":
                return
            case "concatenation" | "command_name":
                yield from self._children(node, quoted=quoted)
            case _ if node.children:
                yield from self._children(node, quoted=False)
            case _:
                yield from self._unescaped(node.start_byte, node.end_byte, None)

    def _children(self, node: "Node", *, quoted: bool) -> Iterator[Piece | None]:
        """Parts that stand side by side, with what the grammar leaves out between them."""
        at = node.start_byte
        for child in node.children:
            yield from self._literal(at, child.start_byte)
            yield from self.pieces(child, quoted=quoted)
            at = child.end_byte
        yield from self._literal(at, node.end_byte)

    def _literal(self, start: int, stop: int) -> Sequence[Piece]:
        return self.source.pieces(start, stop) if start < stop else ()

    def _unescaped(self, start: int, stop: int, escapable: str | None) -> Iterator[Piece]:
        """Literal text without its backslashes; one before a newline joins the lines."""
        data = self.source.between(start, stop).encode()
        at = scan = 0
        while (found := data.find(b"\\", scan)) >= 0 and found + 1 < len(data):
            following = chr(data[found + 1])
            if escapable is not None and following not in escapable and following != "\n":
                scan = found + 2
                continue
            yield from self._literal(start + at, start + found)
            at = found + (2 if following == "\n" else 1)
            scan = max(at, found + 2)
        yield from self._literal(start + at, stop)

    def _string(self, node: "Node") -> Iterator[Piece | None]:
        """What stands between double quotes: expansions do not split."""
        at, stop = node.start_byte + 1, node.end_byte - 1
        for child in node.children:
            if child.type in ('"', "string_content") or child.start_byte < at:
                continue
            yield from self._unescaped(at, self.source.start(child), _ESCAPED_IN_QUOTES)
            yield from self.pieces(child, quoted=True)
            at = child.end_byte
        yield from self._unescaped(at, stop, _ESCAPED_IN_QUOTES)

    def _unknown(self, node: "Node") -> Piece:
        return Piece(text=self.source.text(node), place=self.source.place(node), unknown=True)

    def _variable(
        self, node: "Node", name: str, index: str, *, quoted: bool
    ) -> Iterator[Piece | None]:
        """What a variable stands for; its own text where that is not known."""
        variable = self.state.variables.get(name)
        if variable is None and name in self.state.declared and not self.state.sourced:
            if quoted:
                yield Piece(text="", place=self.source.place(node), certain=False)
            return
        if variable is None or variable.values is None:
            yield self._unknown(node)
            return
        values = _elements(variable, _ALL[0] if name in "@*" else index)
        for number, value in enumerate(values):
            yield from (None,) if number else ()
            yield from (piece.splitting(not quoted and not piece.unknown) for piece in value.pieces)

    def _expansion(self, node: "Node", *, quoted: bool) -> Iterator[Piece | None]:
        match = _PARAMETER.fullmatch(self.source.text(node))
        if match is None or match["prefix"]:
            yield self._unknown(node)
            return
        name, index, rest = match["name"], match["index"] or "", match["rest"]
        if not rest:
            yield from self._variable(node, name, index, quoted=quoted)
            return
        operator = _OPERATOR.match(rest)
        variable = self.state.variables.get(name)
        given = variable is not None and variable.values is not None
        if operator is None:
            yield self._unknown(node)
        elif "+" in operator[0]:
            known = () if name in self.state.declared else None
            values = known if variable is None else variable.values
            if values is None:
                yield self._unknown(node)
            elif any(value.text for value in values):
                yield from self._default(node, len(rest) - len(operator[0]), quoted=quoted)
        elif given and (":" not in operator[0] or any(v.text for v in variable.values or ())):  # type: ignore[union-attr]
            yield from self._variable(node, name, index, quoted=quoted)
        elif (variable is not None and variable.values is None) or "?" in operator[0]:
            yield self._unknown(node)
        else:
            yield from self._taken_default(node, name, operator[0], rest, quoted, given)

    def _taken_default(
        self, node: "Node", name: str, operator: str, rest: str, quoted: bool, given: bool
    ) -> Iterator[Piece | None]:
        """The default, certain where the script sets the variable to nothing; `:=` assigns it."""
        pieces = [
            replace(piece, certain=piece.certain and given) if piece is not None else None
            for piece in bounded(self._default(node, len(rest) - len(operator), quoted=quoted))
        ]
        if "=" in operator:
            whole = [piece for piece in pieces if piece is not None]
            self.state.set(name, scalar(whole or [Piece(text="", place=self.source.place(node))]))
        yield from pieces

    def _default(self, node: "Node", length: int, *, quoted: bool) -> Iterator[Piece | None]:
        """What follows the operator, in the last `length` characters before the brace."""
        stop = node.end_byte - 1
        start = stop - len(self.source.text(node)[:-1][-length:].encode()) if length else stop
        inside = [child for child in node.children if start <= child.start_byte < stop]
        at = start
        for child in inside:
            yield from self._splitting(at, self.source.start(child), quoted)
            keeps = quoted or child.type in ("string", "raw_string")
            for piece in self.pieces(child, quoted=quoted):
                splits = piece is not None and not keeps and not piece.unknown
                yield piece.splitting(True) if piece is not None and splits else piece
            at = child.end_byte
        yield from self._splitting(at, stop, quoted)

    def _splitting(self, start: int, stop: int, quoted: bool) -> Iterator[Piece]:
        return (piece.splitting(not quoted) for piece in self._literal(start, stop))

    def _arithmetic(self, node: "Node") -> Iterator[Piece | None]:
        text = self.source.text(node)
        number = calculate(text[3:-2] if text.startswith("$((") else text[2:-1], self.state)
        if number is None:
            yield self._unknown(node)
        else:
            value, certain = number
            yield Piece(text=str(value), place=self.source.place(node), certain=certain)

    def _substitution(self, node: "Node", *, quoted: bool) -> Iterator[Piece | None]:
        """`$(cat <<EOF …)` is its here-document, `$(cat file)` and `$(<file)` the file; of other
        programs nobody knows what they say."""
        words = self.expanded(node.named_children[0].children) if node.named_children else []
        named = len(words) == 2 and words[0].text in ("cat", "<")
        content = self.state.file(words[-1]) if named else None
        if content is not None:
            yield from (piece.splitting(not quoted) for piece in content.pieces)
            return
        commands = [c for c in node.named_children if c.type == "redirected_statement"]
        body = commands[0].child_by_field_name("body") if len(commands) == 1 else None
        if body is None or self.source.text(body).split() != ["cat"]:
            yield self._unknown(node)
            return
        for child in commands[0].children:
            if child.type == "heredoc_redirect":
                for piece in self.heredoc(child):
                    yield piece.splitting(not quoted)

    def heredoc(self, node: "Node") -> Iterator[Piece]:
        """The text of a here-document, expanded unless its delimiter is quoted."""
        start = next((c for c in node.children if c.type == "heredoc_start"), None)
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        if body is None or start is None:
            return
        if set(self.source.text(start)) & set("'\"\\"):
            yield from self._literal(body.start_byte, body.end_byte)
            return
        at = body.start_byte
        for child in body.children:
            if child.type == "heredoc_content":
                continue
            yield from self._unescaped(at, self.source.start(child), "$`\\")
            yield from filter(None, self.pieces(child, quoted=True))
            at = child.end_byte
        yield from self._unescaped(at, body.end_byte, "$`\\")


def _elements(variable: Variable, index: str) -> Sequence[Word]:
    values = variable.values or ()
    if index in _ALL or not variable.array:
        return values
    number = whole_number(index.strip("[]") or "0")
    return values[number : number + 1] if number is not None else ()


_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    **{name: getattr(operator, name.lower()) for name in ("Add", "Sub", "Mod", "Eq", "Gt", "Lt")},
    "Mult": operator.mul,
    "FloorDiv": lambda a, b: a // b if (a < 0) == (b < 0) else -(-a // b),
    "NotEq": operator.ne,
    "GtE": operator.ge,
    "LtE": operator.le,
}
_NAME: Final = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_TOO_LARGE: Final = 1 << 62


def calculate(text: str, state: State) -> tuple[int, bool] | None:
    """The number and whether it is certain; None where it is not known."""
    names = {name: state.variables.get(name) for name in _NAME.findall(text)}
    values = {name: v.values[0].text for name, v in names.items() if v is not None and v.values}
    numbers = _NAME.sub(lambda match: f"({values.get(match[1], '?').strip()})", text)
    try:
        found = _evaluate(ast.parse(numbers.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
        return None
    return found, all(v is not None and v.certain for v in names.values())


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)) if number < _TOO_LARGE:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ):
            result = _OPERATORS[type(sign).__name__](_evaluate(left), _evaluate(right))
            if abs(result) < _TOO_LARGE:
                return int(result)
    raise ValueError(ast.dump(node))
