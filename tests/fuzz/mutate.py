"""Broken and hostile variants of a real input, each made by its seed alone."""

import gzip
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, Final

_NUMBER: Final = re.compile(rb"\d+(?:\.\d+)?")
_VALUE: Final = re.compile(rb"(?<=[:=] )[^\s,}\]#]+|(?<==)[^\s]+")
_SHORT: Final = (
    b"0 -1 0.0 1e400 1e-320 1e308 -1e308 1_0 1:59:59 1.2.3 NaN nan Infinity -Infinity .inf inf "
    b"1000000 100000000 \xc2\xb2"
)
_NUMBERS: Final = (
    *_SHORT.split(),
    *(b"9" * digits for digits in (19, 400, 5000)),
    b"0x" + b"f" * 500,
)
_VALUES: Final = (
    *b'null true [] {} "" "text" [null] [["a"]] {"a":{"b":[1]}} ~ *a "\\ud800" ${a} \''.split(),
    b"2024-13-45",
    b"!!int x",
    b"!!timestamp x",
    b"&a x",
    b"!!python/object/apply:os.getcwd []",
    b"a: b: c",
)
_NODES: Final[tuple[Any, ...]] = (
    *(None, True, [], [None], {}, {"a": None}, [[]]),
    *(0, -1, 0.0, 1e308, 1e-320, 10**17, 10**19, 10**30, 10**400),
    *("", "text", "nan", "inf", "9" * 400, "\ud800"),
)
_DEPTHS: Final = (50, 150, 5000, 100_000)


def mutate(data: bytes, random: Random) -> bytes:
    """`data` with one to three things wrong with it."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(_OPERATORS)(data, random)
    return data


def mutate_values(data: bytes, random: Random) -> bytes:
    """A JSON document with one or two values of another type: what reads the text reads on."""
    for _ in range(random.choice((1, 1, 2))):
        data = _node(data, random)
    return data


def mutate_word(word: str, random: Random) -> str:
    """One KEY=VALUE, or another word of a command line, with something wrong with its value."""
    key, equals, _ = word.partition("=")
    value = random.choice((*_NUMBERS, *_VALUES, b"[" * 5000, b"x" * 5000, b"\xff", b"[0]*9999999"))
    text = value.decode(errors="surrogateescape")
    return f"{key}={text}" if equals else text


def _flip(data: bytes, random: Random) -> bytes:
    found = bytearray(data)
    for _ in range(random.randint(1, 8)):
        if found:
            found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _cut_out(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.randint(1, 200) :]


def _double_line(data: bytes, random: Random) -> bytes:
    """A key given twice, a sample measured twice, an iteration logged twice."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    return b"\n".join([*lines[:at], *[lines[at]] * random.choice((2, 2, 500)), *lines[at + 1 :]])


def _nest(data: bytes, random: Random) -> bytes:
    opening = random.choice((b"[", b'{"a":', b"{a: ", b"- ", b"? ", b"(", b"$("))
    return _put(data, opening * random.choice(_DEPTHS), random)


def _number(data: bytes, random: Random) -> bytes:
    return _replaced(data, _NUMBER, random.choice(_NUMBERS), random)


def _value(data: bytes, random: Random) -> bytes:
    return _replaced(data, _VALUE, random.choice(_VALUES), random)


def _bomb(data: bytes, random: Random) -> bytes:
    """Aliases of aliases: ten values that each stand for ten."""
    link = random.choice((b"[%s]", b"{<<: [%s]}"))
    lines = [b"a0: &a0 {x: 1}"]
    for level in range(1, random.choice((4, 8, 30))):
        aliases = b",".join([b"*a%d" % (level - 1)] * 10)
        lines.append(b"a%d: &a%d " % (level, level) + link % aliases)
    return data + b"\n" + b"\n".join(lines) + b"\n"


def _node(data: bytes, random: Random) -> bytes:
    """One value of a JSON document, or of each line of one, of another type."""
    head, newline, rest = data.partition(b"\n") if data.count(b"}\n{") else (data, b"", b"")
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError):
        return _value(data, random)
    places = places_of(tree)
    if not places:
        return data
    holder, key = random.choice(places)
    if isinstance(holder, dict) and random.random() < 0.2:
        del holder[key]
    else:
        holder[key] = random.choice(_NODES)
    return json.dumps(tree, indent=None if newline else 1).encode() + newline + rest


def places_of(tree: Any) -> list[tuple[Any, Any]]:
    """Every place of a value, by the mapping or list that holds it."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return found


def _not_text(data: bytes, random: Random) -> bytes:
    return _put(
        data, random.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\x1b[31m")), random
    )


def _mark(data: bytes, random: Random) -> bytes:
    """A byte order mark, and what Windows writes."""
    kind = random.randrange(4)
    if kind == 0:
        return b"\xef\xbb\xbf" + data
    if kind == 1:
        return data.decode(errors="replace").encode("utf-16")
    return b"\xff\xfe" + data if kind == 2 else data.replace(b"\n", b"\r\n")


def _compress(data: bytes, random: Random) -> bytes:
    packed = gzip.compress(data, 1)
    kind = random.randrange(3)
    if kind == 0:
        return packed
    return packed[: random.randint(0, len(packed))] if kind == 1 else _flip(packed, random)


def _long_line(data: bytes, random: Random) -> bytes:
    return _put(data, random.choice((b"x", b"1", b" ", b"\r", b"a: 1 ", b"\\")) * 50_000, random)


def _put(data: bytes, what: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    if random.random() < 0.5:  # where a value stands
        places = [match.start() for match in _VALUE.finditer(data)]
        at = random.choice(places) if places else at
    return data[:at] + what + data[at:]


def _replaced(data: bytes, pattern: re.Pattern[bytes], by: bytes, random: Random) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data + by
    match = random.choice(found)
    return data[: match.start()] + by + data[match.end() :]


_OPERATORS: Final[tuple[Callable[[bytes, Random], bytes], ...]] = (
    *(_flip, _truncate, _cut_out, _double_line, _nest, _bomb, _not_text, _mark, _compress),
    *(_number, _number, _value, _value, _node, _node, _node, _long_line),
)
