"""A reader of pickles that knows dicts, lists, tuples, strings and numbers, and nothing else.

It has no way to name a class or to call one: whatever is more than plain data is refused. Every
object is made by bytes of the file, so that a small file cannot become large; one that is held in
many places is one object: who walks through them must count (see recorded_memory). Source: opcodes
of protocols 2 to 5 (Python 3.11 pickletools), of which torch.cuda.memory._dump_snapshot writes 4.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from advisor.base.errors import UserError

MOST_BYTES: Final = 2 << 30
MOST_OPERATIONS: Final = 120_000_000
"""Two million events of torch 2.11 with the stacks of allocations: 50 to 60 each."""
MOST_NESTED: Final = 64
_BATCH: Final = 2001
"""Objects that a pickler has in hand at each level: keys and values in batches of a thousand."""
_LONGEST_INTEGER: Final = 9
"""Bytes: addresses and sizes have 64 bits, and a sign."""
_FIRST_PROTOCOL, _LAST_PROTOCOL = 2, 5


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
    reader = _Reader(content)
    try:
        return reader.read()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise NotPlainError(f"its pickle is damaged before byte {reader.at}") from None


class _Reader:
    """The machine that pickles are programs of: a stack, marks on it, a memo."""

    def __init__(self, content: bytes) -> None:
        self.at = 0
        self._content = content
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        """Run to the end. What two thirds of a snapshot are made of is done here, for speed."""
        steps, content, stack, memo = _STEPS, self._content, self._stack, self._memo
        for _ in range(MOST_OPERATIONS):
            code = content[self.at]
            self.at += 1
            if code == _LONG_GET:
                start, self.at = self.at, self.at + 4
                stack.append(memo[int.from_bytes(content[start : self.at], "little")])
            elif code == _GET:
                stack.append(memo[content[self.at]])
                self.at += 1
            elif code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _STOP:
                return stack[-1]
            elif (step := steps[code]) is None:
                raise NotPlainError(_refusal(code))
            else:
                step(self)
        raise NotPlainError(f"it has more than {MOST_OPERATIONS:,} parts")

    def _take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > len(self._content):
            raise IndexError
        return self._content[start : self.at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _above_mark(self) -> list[Any]:
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def protocol(self) -> None:
        """Between those that are known."""
        if not _FIRST_PROTOCOL <= (found := self._number(1)) <= _LAST_PROTOCOL:
            raise NotPlainError(
                f"its pickle protocol is {found}, not {_FIRST_PROTOCOL} to {_LAST_PROTOCOL}"
            )

    def frame(self) -> None:
        """How the file is cut, which changes nothing."""
        self._take(8)

    def mark(self) -> None:
        """A place on the stack."""
        self._marks.append(len(self._stack))
        if len(self._marks) > MOST_NESTED:
            raise _too_deep()

    def push(self, value: object) -> None:
        """A value."""
        self._stack.append(value)
        if len(self._stack) > MOST_NESTED * _BATCH:
            raise _too_deep()

    def integer(self, size: int, *, signed: bool = False) -> None:
        """A whole number of a known size."""
        self._stack.append(int.from_bytes(self._take(size), "little", signed=signed))

    def long_integer(self) -> None:
        """A whole number that says its size."""
        size = self._number(1)
        if size > _LONGEST_INTEGER:
            raise NotPlainError(f"a number in it has {size} bytes")
        self.integer(size, signed=True)

    def floating(self) -> None:
        """A number with a point."""
        self._stack.append(struct.unpack(">d", self._take(8))[0])

    def text(self, size: int) -> None:
        """A string; `size`: bytes of its length."""
        self._stack.append(str(self._take(self._number(size)), "utf-8", "surrogatepass"))

    def group(self, size: int | None) -> None:
        """A tuple of what is on top, or above the mark."""
        if size is None:
            self._stack.append(tuple(self._above_mark()))
            return
        if len(self._stack) < size:
            raise IndexError
        self._stack[-size:] = [tuple(self._stack[-size:])]

    def append(self) -> None:
        """One item to the list below it."""
        self._extend([self._stack.pop()])

    def appends(self) -> None:
        """Items above the mark to the list below it."""
        self._extend(self._above_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise IndexError
        target.extend(items)

    def set_item(self) -> None:
        """One value under a key."""
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        """Keys and values above the mark."""
        self._update(self._above_mark())

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise IndexError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):  # to hash a nested tuple has no limit of depth
                raise NotPlainError("a key in it is neither a string nor a whole number")
            target[key] = value

    def put(self, size: int) -> None:
        """Keep what is on top under a number."""
        self._memo[self._number(size)] = self._stack[-1]


def _too_deep() -> NotPlainError:
    return NotPlainError(f"it is nested more than {MOST_NESTED} deep")


def _refusal(code: int) -> str:
    """Names what is not plain data."""
    from pickletools import opcodes

    for known in opcodes:
        if known.code == chr(code):
            return f"it holds more than dicts, lists, strings and numbers ({known.name})"
    return f"byte {code:#04x} is not part of a pickle"


_STOP: Final = ord(".")
_GET, _LONG_GET, _MEMOIZE = ord("h"), ord("j"), 0x94
_STEPS: Final[list[Callable[[_Reader], None] | None]] = [None] * 256
for _code, _step in {
    0x80: _Reader.protocol,
    0x95: _Reader.frame,
    ord("("): _Reader.mark,
    ord("}"): lambda reader: reader.push({}),
    ord("]"): lambda reader: reader.push([]),
    ord(")"): lambda reader: reader.push(()),
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(True),
    0x89: lambda reader: reader.push(False),
    ord("K"): lambda reader: reader.integer(1),
    ord("M"): lambda reader: reader.integer(2),
    ord("J"): lambda reader: reader.integer(4, signed=True),
    0x8A: _Reader.long_integer,
    ord("G"): _Reader.floating,
    0x8C: lambda reader: reader.text(1),
    ord("X"): lambda reader: reader.text(4),
    0x85: lambda reader: reader.group(1),
    0x86: lambda reader: reader.group(2),
    0x87: lambda reader: reader.group(3),
    ord("t"): lambda reader: reader.group(None),
    ord("a"): _Reader.append,
    ord("e"): _Reader.appends,
    ord("s"): _Reader.set_item,
    ord("u"): _Reader.set_items,
    ord("q"): lambda reader: reader.put(1),
    ord("r"): lambda reader: reader.put(4),
}.items():
    _STEPS[_code] = _step
