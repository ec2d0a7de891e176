"""What a condition of a shell script comes to: true, false, or None where nobody knows."""

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from advisor.reading.shell.arithmetic import calculate
from advisor.reading.shell.expansion import Expander, Source
from advisor.reading.shell.state import UNKNOWN, State, scalar

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMBERS: Final = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_TESTS: Final = ("test_command", "negated_command", "binary_expression", "unary_expression")
_EQUAL: Final = re.compile(
    r"""\[+ "?\$\{?(?P<name>\w+)[^}\s]*\}?"? (?:==?|-eq) ["']?(?P<value>[\w.-]*)["']? \]+""",
    re.ASCII,
)
"""A test of one variable, `[ "$SIZE" = 8b ]`."""


def is_test(node: "Node") -> bool:
    """Whether a node only asks, and runs nothing."""
    arithmetic = node.type == "compound_statement" and node.children[0].type == "(("
    every = node.type == "list" and all(is_test(child) for child in node.named_children)
    return node.type in _TESTS or arithmetic or every


def judge(node: "Node", expander: Expander) -> bool | None:
    """Judge a test, `[ … ]`, `[[ … ]]`, `(( … ))` or a combination of them."""
    state, text, inside = expander.state, expander.source.text(node), node.named_children
    if text in state.assumed:
        return state.assumed[text]
    match node.type:
        case "compound_statement" if text.startswith("(("):
            found = calculate(text[2:-2], state)
            return bool(found[0]) if found is not None and found[1] else None
        case "test_command" | "parenthesized_expression" if len(inside) == 1:
            return judge(inside[0], expander)
        case "negated_command" | "unary_expression":
            return _unary(expander.source.text(node.children[0]), inside[-1], expander)
        case "binary_expression" | "list":
            left, right = inside[0], inside[-1]
            signs = (expander.source.text(c) for c in node.children[1:-1] if c != right)
            return _binary(left, next(signs, ""), right, expander)
        case "command" if text in ("true", "false"):
            return text == "true"
    return None


def _unary(sign: str, operand: "Node", expander: Expander) -> bool | None:
    if sign == "!":
        truth = judge(operand, expander)
        return None if truth is None else not truth
    text = _text(operand, expander) if sign in ("-z", "-n") else None
    return None if text is None else bool(text) == (sign == "-n")


def _binary(left: "Node", sign: str, right: "Node", expander: Expander) -> bool | None:
    if sign in ("&&", "||", "-a", "-o"):
        both, stops = (judge(left, expander), judge(right, expander)), sign in ("||", "-o")
        if stops in both:
            return stops
        return None if None in both else not stops
    one, other = _text(left, expander), _text(right, expander)
    if one is None or other is None:
        return None
    if sign in ("=", "==", "!="):
        return fnmatchcase(one, other) == (sign != "!=")
    found = calculate(f"{one} {_NUMBERS.get(sign, '?')} {other}", expander.state)
    return bool(found[0]) if found is not None and found[1] else None


def _text(node: "Node", expander: Expander) -> str | None:
    """What one side stands for, None where that is not certain."""
    words = expander.words([node])
    return "".join(w.text for w in words) if all(w.certain for w in words) else None


def assume(state: State, node: "Node", source: Source, text: str, *, truth: bool) -> State:
    """The state in which a condition that is not known is `truth`: a variable that equals one value
    has it, and one that does not equal its default has another that is not known."""
    way = state.copy()
    equal = _EQUAL.fullmatch(text)
    if equal is not None:
        name, (start, stop) = equal["name"], equal.span("value")
        known = way.variables.get(name)
        if truth:
            at = node.start_byte
            way.set(name, scalar(source.pieces(at + start, at + stop)))
        elif known is not None and known.values and known.values[0].text == equal["value"]:
            way.variables[name] = UNKNOWN
    way.assumed[text] = truth
    way.branch = (*way.branch, text if truth else f"not {text}")
    return way
