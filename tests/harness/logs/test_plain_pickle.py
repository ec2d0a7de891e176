"""Plain data is read as pickle reads it; nothing else is read, and nothing is run."""

import os
import pickle
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.base.errors import UserError
from harness.logs import plain_pickle
from harness.logs.plain_pickle import NotPlainError, plain_data, read_plain

SIXTY_FOUR_BITS = st.integers(-(1 << 63), (1 << 64) - 1)
KEYS = st.text(max_size=300) | SIXTY_FOUR_BITS
LEAVES = KEYS | st.none() | st.booleans() | st.floats(allow_nan=False)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=40,
)


@given(PLAIN, st.sampled_from((2, 3, 4, 5)))
@settings(deadline=None, max_examples=200)
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol=protocol)
    found = plain_data(content)
    assert found == value
    assert repr(found) == repr(value)  # True is not 1, a tuple is no list


def test_what_stands_in_two_places_is_one_object() -> None:
    shared = ["a"]
    one, other = plain_data(pickle.dumps([shared, shared]))
    assert one is other


class Runs:
    """What a hostile file holds."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_class_is_loaded_and_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    for hostile in (Runs(tmp_path / "made"), [{"segments": Runs(tmp_path / "made")}]):
        with pytest.raises(NotPlainError):
            plain_data(pickle.dumps(hostile, protocol=protocol))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Path), "STACK_GLOBAL"),
        (b"cos\nsystem\n.", "GLOBAL"),
        (b"\x80\x02(cos\nsystem\no.", "GLOBAL"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (pickle.dumps({1, 2}), "EMPTY_SET"),
        (pickle.dumps(b"bytes"), "SHORT_BINBYTES"),
        (pickle.dumps({(1, 2): 3}), "a key"),
        (b"PK\x03\x04", "PERSID"),
        (b"\x80\x63.", "damaged .unsupported pickle protocol: 99."),
        (b"", "is damaged .it ends early."),
        (b"\x80\x04.", "is damaged"),
        (b"\x80\x04\x8c\xffshort.", "is damaged"),
        (b"\x80\x04K\x01a.", "is damaged"),
        (b"\x80\x04h\x00.", "is damaged"),
        (b"\x80\x04\x8c\x02\xff\xfe.", "is damaged"),
        (b"\xff", "byte 0xff is not part of a pickle"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, words: str) -> None:
    with pytest.raises(NotPlainError, match=words):
        plain_data(content)


def test_a_small_file_takes_no_large_memory() -> None:
    """Lengths and memo numbers of gigabytes that a file claims are not believed."""
    most = struct.pack("<I", (1 << 32) - 1)
    with pytest.raises(NotPlainError, match="damaged"):
        plain_data(b"\x80\x04X" + most + b"x.")
    assert plain_data(b"\x80\x04Nr" + most + b".") is None
    laughs: list[Any] = []
    for _ in range(60):  # 10^60 items, if somebody walked through them
        laughs = [laughs] * 10
    assert len(plain_data(pickle.dumps(laughs))) == 10


def test_size_and_parts_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps([{} for _ in range(100)]))
    monkeypatch.setattr(plain_pickle, "MOST_PARTS", 50)
    with pytest.raises(UserError, match="more than 50 parts"):
        read_plain(path)
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 100)
    with pytest.raises(UserError, match="is too large"):
        read_plain(path)
    with pytest.raises(UserError, match="is not a file"):
        read_plain(tmp_path)


def test_damage_is_reported_and_never_more() -> None:
    """Flipped, cut and doubled bytes give data or NotPlainError."""
    content = pickle.dumps([{"action": "alloc", "addr": 1 << 40, "frames": [("a", 1.5)]}] * 3)
    for seed in range(3000):
        random = Random(seed)
        broken = bytearray(content)
        for _ in range(random.randint(1, 6)):
            at = random.randrange(len(broken))
            kind = random.randrange(3)
            if kind == 0:
                broken[at] = random.randrange(256)
            elif kind == 1:
                del broken[at : at + random.randint(1, 9)]
            else:
                broken[at:at] = broken[at : at + random.randint(1, 40)]
            broken = broken or bytearray(b".")
        try:
            plain_data(bytes(broken))
        except NotPlainError:
            continue
