"""Logs as lines and as bytes: the same text, whatever it is packed in."""

import gzip
import io
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base import lines
from advisor.base.errors import UserError
from advisor.base.lines import STDIN, DamagedError, clean_line, read_blocks, read_pieces
from advisor.diagnose.scan import scan
from advisor.report.diagnosis_page import diagnosis_page

TEXT = "step 1\nstep 2\nCUDA out of memory. Tried to allocate 1.96 GiB.\n"
PACKED = {
    "plain": TEXT.encode(),
    "gzip": gzip.compress(TEXT.encode()),
    "two members": gzip.compress(TEXT[:10].encode()) + gzip.compress(TEXT[10:].encode()),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16 in gzip": gzip.compress(TEXT.encode("utf-16")),
}


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED.keys())
def test_lines_bytes_and_failures_are_those_of_the_plain_file(
    packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(packed)
    assert b"".join(read_blocks(path)) == TEXT.encode()
    assert b"".join(read_pieces(path, 7)) == TEXT.encode()
    found = scan(path)
    assert ([one.line_number for one in found.findings], found.num_lines) == ([3], 3)
    assert not found.damaged
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert scan(STDIN) == found


@pytest.mark.slow
def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    whole = gzip.compress((TEXT * 20_000).encode(), 0)
    path.write_bytes(whole[: len(whole) // 2])
    blocks = read_blocks(path)
    assert next(blocks).startswith(b"step 1\n")
    with pytest.raises(DamagedError):
        list(blocks)
    found = scan(path)
    assert found.damaged
    assert found.findings[0].occurrences > 9_000
    pages = [diagnosis_page(one) for one in (found, replace(found, damaged=False))]
    assert len(pages[0].blocks) == len(pages[1].blocks) + 1


def test_a_prefix_of_more_digits_than_any_rank_is_text() -> None:
    assert clean_line("[rank12]: x") == (12, "x")
    assert clean_line("9" * 5000 + ": x") == (None, "9" * 5000 + ": x")


def test_what_cannot_be_read_is_the_users_error(tmp_path: Path) -> None:
    for read in (lambda: list(read_blocks(tmp_path)), lambda: list(read_pieces(tmp_path, 1))):
        with pytest.raises(UserError, match="cannot be read"):
            read()


@pytest.mark.parametrize("read", [scan, lambda path: list(read_blocks(path))])
def test_a_bomb_is_refused_in_one_line(read, tmp_path, monkeypatch) -> None:
    """A log of one line repeated, which no bomb shrinks as little as, is read."""
    monkeypatch.setattr(lines, "MOST_UNPACKED", 1 << 20)
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress((TEXT * 50_000).encode()))
    read(path)
    path.write_bytes(gzip.compress(bytes(1 << 23)))
    with pytest.raises(UserError, match="unpacks to more than 500 times its size"):
        read(path)
