"""scripts/thin_fatbins.py on a library of two containers made here: what stays, and where."""

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

SCRIPT = Path(__file__).parents[2] / "scripts" / "thin_fatbins.py"
MAGIC = 0xBA55ED50
PTX, CUBIN, OTHER = 1, 2, 8
NAMES = b"\0.text\0.nv_fatbin\0.shstrtab\0"

_spec = importlib.util.spec_from_file_location("thin_fatbins", SCRIPT)
thin_fatbins = importlib.util.module_from_spec(_spec)
sys.modules["thin_fatbins"] = thin_fatbins
_spec.loader.exec_module(thin_fatbins)


def entry(kind: int, arch: int, size: int) -> bytes:
    """Headers have 64 bytes; the payload tells entries apart."""
    header = struct.pack("<HHIQ12xI", kind, 0x101, 64, size, arch).ljust(64, b"\x07")
    return header + bytes([arch, kind]) * (size // 2)


def container(*images: bytes) -> bytes:
    return struct.pack("<IHHQ", MAGIC, 1, 16, sum(map(len, images))) + b"".join(images)


class Made(Struct, dict=True):
    """A library, and where its section and each of its containers begin."""

    content: bytes
    section: slice
    containers: list[int]


def library(*given: bytes) -> Made:
    """ELF64: header, .text, .nv_fatbin with zeros between containers, names, table of sections."""
    text, fat, starts = b"code" * 10, b"", []
    for each in given:
        starts.append(64 + len(text) + len(fat))
        fat += each + bytes(24)
    blocks = [(0, b""), (1, text), (7, fat), (18, NAMES)]
    body, table, at = b"", b"", 64
    for name, block in blocks:
        table += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, len(block), 0, 0, 8, 0)
        body, at = body + block, at + len(block)
    head = struct.pack("<4sBBB", b"\x7fELF", 2, 1, 1).ljust(0x28, b"\0") + struct.pack("<Q", at)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(blocks), 3)
    section = slice(64 + len(text), 64 + len(text) + len(fat))
    return Made(head + body + table, section, starts)


OLD, OWN, NEW = entry(CUBIN, 80, 48), entry(CUBIN, 90, 32), entry(CUBIN, 100, 64)
TWO_WAYS = container(entry(PTX, 90, 16), OLD, OWN, NEW, entry(OTHER, 0, 8))
PTX_ALONE = container(OLD, entry(PTX, 80, 24), NEW)


def thinned(made: Made, arch: int = 90) -> bytes:
    content = bytearray(made.content)
    thin_fatbins.thin(content, arch)
    return bytes(content)


def images(content: bytes, start: int) -> bytes:
    """What a container says it holds."""
    magic, version, header, size = struct.unpack_from("<IHHQ", content, start)
    assert (magic, version, header) == (MAGIC, 1, 16)
    return content[start + header : start + header + size]


@pytest.mark.parametrize(
    ("containers", "arch", "left"),
    [
        ((TWO_WAYS, PTX_ALONE), 90, [OWN + entry(OTHER, 0, 8), entry(PTX, 80, 24)]),
        ((TWO_WAYS, PTX_ALONE), 100, [NEW + entry(OTHER, 0, 8), NEW]),
        ((container(OLD, NEW), TWO_WAYS), 90, [b"", OWN + entry(OTHER, 0, 8)]),
    ],
)
def test_what_one_gpu_runs_stays(containers, arch: int, left: list[bytes]) -> None:
    made = library(*containers)
    content = thinned(made, arch)
    assert [images(content, start) for start in made.containers] == left


def test_nothing_moves_and_the_rest_is_zeros() -> None:
    made = library(TWO_WAYS, PTX_ALONE)
    content, section = thinned(made), made.section
    assert len(content) == len(made.content)
    assert content[: section.start] == made.content[: section.start]
    assert content[section.stop :] == made.content[section.stop :]
    ends = [*made.containers[1:], section.stop]
    for start, end in zip(made.containers, ends, strict=True):
        assert not any(content[start + 16 + len(images(content, start)) : end])


def test_a_thin_library_stays_as_it_is() -> None:
    made = library(TWO_WAYS, PTX_ALONE)
    once = thinned(made)
    assert thinned(Made(once, made.section, made.containers)) == once


def test_the_command_says_what_went(tmp_path: Path) -> None:
    made, source, out = library(TWO_WAYS, PTX_ALONE), tmp_path / "lib.so", tmp_path / "thin.so"
    source.write_bytes(made.content)
    source.chmod(0o755)
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(source), str(out), "--arch", "90"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("lib.so: 2 containers, 3 entries kept (")
    assert ", 5 dropped (" in run.stdout
    assert out.read_bytes() == thinned(made)
    assert out.stat().st_mode == source.stat().st_mode
    assert source.read_bytes() == made.content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"#!/bin/sh\n", "no 64-bit little-endian ELF file"),
        (library(TWO_WAYS).content[:-1], "its table of sections is cut off"),
        (library(b"\1" + bytes(31)).content, "no container at 0x68"),
        (library(TWO_WAYS[:8] + b"\xff\xff" + TWO_WAYS[10:]).content, "leaves its section"),
        (library(container(OLD[:-2])).content, "leaves its container"),
        (library(container(OLD[:20])).content, "is cut off"),
    ],
)
def test_what_is_no_such_library_is_reported_and_nothing_is_written(
    tmp_path: Path, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "lib.so", tmp_path / "thin.so"
    source.write_bytes(content)
    assert thin_fatbins.main([str(source), str(out), "--arch", "90"]) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()
