"""What a condition of a shell script comes to: true, false, or nobody knows."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from advisor.base.numbers import whole
from advisor.reading.shell.expansion import Expander
from advisor.reading.shell.state import UNKNOWN, State, scalar
from advisor.reading.words import Piece, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
_EQUAL: Final = ("=", "==", "-eq")
_UNEQUAL: Final = ("!=", "-ne")
_TESTS: Final = ("test_command", "negated_command", "binary_expression", "unary_expression")


def is_test(node: "Node") -> bool:
    """Whether a node only asks, and runs nothing."""
    arithmetic = node.type == "compound_statement" and node.children[0].type == "(("
    every = node.type == "list" and all(is_test(child) for child in node.named_children)
    return node.type in _TESTS or arithmetic or every


class Verdict(Struct, frozen=True):
    """What a condition comes to, None where it is not known; then what follows from its being
    true: `name` has the value `value`."""

    truth: bool | None = None
    name: str = ""
    value: Word | None = None


def judge(node: "Node", expander: Expander) -> Verdict:
    """Judge a test, `[ … ]`, `[[ … ]]`, `(( … ))` or a combination of them."""
    state, text = expander.state, expander.source.text(node)
    if text in state.assumed:
        return Verdict(state.assumed[text])
    match node.type:
        case "test_command" | "parenthesized_expression" | "compound_statement":
            inside = node.named_children
            return judge(inside[0], expander) if len(inside) == 1 else Verdict()
        case "negated_command" | "unary_expression":
            return _unary(node, expander)
        case "binary_expression" | "list":
            return _binary(node, expander)
        case "command" if text in ("true", "false"):
            return Verdict(text == "true")
    return Verdict()


def _unary(node: "Node", expander: Expander) -> Verdict:
    sign = expander.source.text(node.children[0])
    operand = node.named_children[-1]
    if sign == "!":
        truth = judge(operand, expander).truth
        return Verdict(None if truth is None else not truth)
    if sign not in ("-z", "-n"):
        return Verdict()
    words = expander.words([operand])
    if not all(word.certain for word in words):
        return Verdict()
    return Verdict(bool("".join(word.text for word in words)) == (sign == "-n"))


def _binary(node: "Node", expander: Expander) -> Verdict:
    left, right = node.named_children[0], node.named_children[-1]
    sign = next((expander.source.text(c) for c in node.children[1:-1] if c != right), "")
    if sign in ("&&", "||", "-a", "-o"):
        both = judge(left, expander).truth, judge(right, expander).truth
        stops = sign in ("||", "-o")
        if stops in both:
            return Verdict(stops)
        return Verdict(None if None in both else not stops)
    sides = [_side(side, expander) for side in (left, right)]
    texts = ["".join(word.text for word in side) for side in sides]
    if all(word.certain for side in sides for word in side):
        return Verdict(_compare(texts[0], sign, texts[1]))
    name = _name(left, expander)
    if name and sign in (*_EQUAL, *_UNEQUAL) and all(word.certain for word in sides[1]):
        value = sides[1][0] if sides[1] else None
        if "*" not in texts[1]:
            return Verdict(None, name, value) if sign in _EQUAL else Verdict()
    return Verdict()


def _side(node: "Node", expander: Expander) -> list[Word]:
    """The words of one side; a name alone, as in `(( N > 1 ))`, is the variable."""
    if node.type != "variable_name":
        return expander.words([node])
    variable = expander.state.variables.get(expander.source.text(node))
    if variable is not None and variable.values:
        return list(variable.values[:1])
    place = expander.source.place(node)
    return [Word((Piece(text="$" + expander.source.text(node), place=place, unknown=True),))]


def _compare(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "=="):
        return fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatchcase(left, right)
    one, other = whole(left.strip()), whole(right.strip())
    if sign in _NUMBERS and one is not None and other is not None:
        return _NUMBERS[sign](one, other)
    return None


def _name(node: "Node", expander: Expander) -> str:
    """The variable that a side of a comparison is, and nothing else."""
    text = expander.source.text(node).strip('"')
    if node.type == "variable_name":
        return text
    name = text.removeprefix("$").strip("{}").partition(":")[0]
    return name if text.startswith("$") and name.isidentifier() else ""


def assume(state: State, text: str, verdict: Verdict, truth: bool) -> State:
    """The state in which a condition that is not known is `truth`."""
    way = state.copy()
    if verdict.name:
        if truth and verdict.value is not None:
            way.set(verdict.name, scalar(verdict.value.pieces))
        elif not truth:
            known = way.variables.get(verdict.name)
            values = known.values if known is not None else None
            if values and verdict.value is not None and values[0].text == verdict.value.text:
                way.variables[verdict.name] = UNKNOWN
    way.assumed[text] = truth
    way.branch = (*way.branch, text if truth else f"not {text}")
    return way
