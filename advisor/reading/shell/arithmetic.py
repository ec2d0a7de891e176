"""`$((…))` of whole numbers."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Final

from advisor.reading.shell.state import State

_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}
_NAME: Final = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_TOO_LARGE: Final = 1 << 62


def calculate(text: str, state: State) -> tuple[int, bool] | None:
    """The number and whether it is certain; None where it cannot be told."""
    certain = True

    def value(match: re.Match[str]) -> str:
        nonlocal certain
        variable = state.variables.get(match[1])
        known = variable is not None and variable.values and variable.values[0].text
        if variable is None or not known or not known.strip().lstrip("-").isdigit():
            return "?"
        certain = certain and variable.certain
        return f"({known.strip()})"

    numbers = _NAME.sub(value, text).replace("/", "//").replace("////", "//")
    try:
        return _evaluate(ast.parse(numbers.strip(), mode="eval").body), certain
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
        return None


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right):
            result = _OPERATORS[type(sign)](_evaluate(left), _evaluate(right))
            if abs(result) < _TOO_LARGE:
                return result
    raise ValueError(ast.dump(node))
