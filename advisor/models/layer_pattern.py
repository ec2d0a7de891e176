"""Which layers of a model have a property: Megatron's `moe_layer_freq` and its like."""

from functools import lru_cache
from typing import TYPE_CHECKING

from advisor.base.errors import UserError

if TYPE_CHECKING:
    import ast

_MOST_ENTRIES = 10_000


class LayerPattern(str):
    """N (layer 0 and every Nth after it) or one 0 or 1 a layer, e.g. "([0]*3+[1]*58)", as text.

    Megatron evaluates the text as Python (training/arguments.py moe_freq_type); here lists, + and
    * are read, and nothing else.
    """

    __slots__ = ()

    @classmethod
    def read(cls, value: object, where: str) -> "LayerPattern":
        """From YAML, JSON or the command line: a number, a list or text."""
        if isinstance(value, bool) or not isinstance(value, int | str | list | tuple):
            raise UserError(where, str(value), "must be a number of layers or a pattern", _FORMS)
        text = str(list(value)) if isinstance(value, list | tuple) else str(value)
        if len(text) > 5 * _MOST_ENTRIES:
            raise UserError(where, text[:60], f"has more than {_MOST_ENTRIES:,} layers", _FORMS)
        pattern = cls("".join(text.split()))
        _entries(pattern, where)
        return pattern

    @property
    def entries(self) -> int | tuple[bool, ...]:
        """The number, or whether each layer has the property."""
        return _entries(self, "layer pattern")

    def expand(self, num_layers: int, where: str) -> tuple[bool, ...]:
        """Whether each layer has the property; UserError where the pattern has another length."""
        entries = _entries(self, where)
        if isinstance(entries, int):
            return tuple(layer % entries == 0 for layer in range(num_layers))
        if len(entries) != num_layers:
            relation = f"has {len(entries)} layers, but the model has {num_layers}"
            raise UserError(where, self[:60], relation)
        return entries

    def expand_from_one(self, num_layers: int, where: str) -> tuple[bool, ...]:
        """The same, but a number N means layers N, 2N, ..., counted from 1."""
        entries = _entries(self, where)
        if isinstance(entries, int):
            return tuple(layer % entries == 0 for layer in range(1, num_layers + 1))
        return self.expand(num_layers, where)


EVERY_LAYER = LayerPattern("1")

_FORMS = "write e.g. 2, [0,1,1,1] or ([0]*3+[1]*58)"


@lru_cache(maxsize=256)
def _entries(pattern: str, where: str) -> int | tuple[bool, ...]:
    """The number, or the list written out."""
    if pattern in tuple("123456789"):  # nearly always: Python's parser takes a while to load
        return int(pattern)
    import ast

    try:
        value = _evaluate(ast.parse(pattern, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(where, pattern[:60], "is not a layer pattern", _FORMS) from None
    if isinstance(value, int):
        if value < 1:
            raise UserError(where, value, "must be at least 1", _FORMS)
        return value
    if not set(value) <= {0, 1}:
        raise UserError(where, pattern[:60], "must hold only 0 and 1", _FORMS)
    return tuple(entry == 1 for entry in value)


def _evaluate(node: "ast.expr") -> int | list[int]:
    """Integers, lists of them, list + list, list * integer; ValueError on anything else."""
    import ast

    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.List(elts=elements):
            return [_integer(_evaluate(element)) for element in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            joined = [*_list(_evaluate(left)), *_list(_evaluate(right))]
            if len(joined) > _MOST_ENTRIES:
                raise ValueError
            return joined
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _evaluate(left), _evaluate(right)
            values, times = (second, first) if isinstance(first, int) else (first, second)
            if len(_list(values)) * abs(_integer(times)) > _MOST_ENTRIES:
                raise ValueError
            return _list(values) * _integer(times)
    raise ValueError


def _integer(value: int | list[int]) -> int:
    if not isinstance(value, int):
        raise ValueError
    return value


def _list(value: int | list[int]) -> list[int]:
    if not isinstance(value, list):
        raise ValueError
    return value
