"""A reader of pickles that knows dicts, lists, tuples, strings and numbers, and nothing else. It is
the standard library's own, without the opcodes that name a class or call one: whatever is more than
plain data is refused. It is the one in Python, as the one in C allocates whatever size a file
claims. An object that is held in many places is one object: who walks through them must count (see
recorded_memory). Source: opcodes of protocols 2 to 5 (Python 3.11 pickle.py), of which
torch.cuda.memory._dump_snapshot writes 4."""

import pickle
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from advisor.base.errors import UserError

MOST_BYTES: Final = 2 << 30
MOST_PARTS: Final = 60_000_000
"""Two million events of torch 2.11 with the stacks of allocations: up to 30 each."""
_READ: Final = (
    "PROTO FRAME STOP NONE NEWTRUE NEWFALSE BININT1 BININT2 BININT LONG1 BINFLOAT SHORT_BINUNICODE "
    "BINUNICODE APPEND APPENDS BINPUT LONG_BINPUT BINGET LONG_BINGET"
)
_COUNTED: Final = "MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE MEMOIZE"
"""One byte of the file becomes dozens in memory: uncounted, a small file could become large."""


class NotPlainError(ValueError):
    """A pickle that is damaged, too large, or more than plain data."""


def read_plain(path: Path) -> object:
    """The data of a file; UserError where it is none, is too large, or holds more than data."""
    if not path.is_file():
        raise UserError(str(path), None, "is not a file")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UserError(str(path), None, f"is too large ({size:,} bytes; at most {MOST_BYTES:,})")
    try:
        return plain_data(path.read_bytes())
    except NotPlainError as error:
        raise UserError(str(path), None, f"is not a memory snapshot: {error}") from None


def plain_data(content: bytes) -> object:
    """The data of a pickle; NotPlainError as above."""
    try:
        return _PlainUnpickler(BytesIO(content)).load()
    except NotPlainError:
        raise
    except _DAMAGE as error:
        raise NotPlainError(f"its pickle is damaged ({str(error) or 'it ends early'})") from None


_DAMAGE: Final = (
    *(pickle.UnpicklingError, struct.error, EOFError, LookupError),
    *(AssertionError, AttributeError, TypeError, ValueError),
)
"""What the reader raises for content that no pickler writes."""


class _Steps(dict[int, Callable[[Any], None]]):
    """What each known opcode does."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        from pickletools import opcodes

        for known in opcodes:
            if known.code == chr(code):
                more = f"it holds more than dicts, lists, strings and numbers ({known.name})"
                raise NotPlainError(more)
        raise NotPlainError(f"byte {code:#04x} is not part of a pickle")


class _PlainUnpickler(pickle._Unpickler):
    parts = 0


def _set_items(reader: Any, items: list[Any]) -> None:
    target = reader.stack[-1]
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) not in (str, int):  # to hash a nested tuple has no limit of depth
            raise NotPlainError("a key in it is neither a string nor a whole number")
        target[key] = value


def _set_item(reader: Any) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    _set_items(reader, [key, value])


def _counted(step: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(reader: _PlainUnpickler) -> None:
        reader.parts += 1
        if reader.parts > MOST_PARTS:
            raise NotPlainError(f"it has more than {MOST_PARTS:,} parts")
        step(reader)

    return counted


def _steps(names: str) -> dict[int, Callable[[Any], None]]:
    codes = (getattr(pickle, name)[0] for name in names.split())
    return {code: pickle._Unpickler.dispatch[code] for code in codes}


_PlainUnpickler.dispatch = _Steps(
    _steps(_READ) | {code: _counted(step) for code, step in _steps(_COUNTED).items()}
)
_PlainUnpickler.dispatch[pickle.SETITEM[0]] = _set_item
_PlainUnpickler.dispatch[pickle.SETITEMS[0]] = lambda one: _set_items(one, one.pop_mark())
