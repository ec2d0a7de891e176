"""`$((…))` and comparisons of whole numbers."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Final

from advisor.reading.shell.state import State

_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    **{name: getattr(operator, name.lower()) for name in ("Add", "Sub", "Mod", "Eq", "Gt", "Lt")},
    "Mult": operator.mul,
    "FloorDiv": lambda a, b: int(a / b),
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
        case ast.Constant(value=int(number)):
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
