#!/usr/bin/env python3
"""Drops from a CUDA shared library the machine code that one kind of GPU never runs.

scripts/thin_fatbins.py libtransformer_engine.so thin.so --arch 90

A fat binary is a section of containers, each with the same kernels for several GPUs. What is kept:
machine code of the architecture, PTX where its container has none of that, and entries of any other
kind. They move to the front of their container, whose size shrinks; zeros, which pack to nothing,
take the rest. No container moves and nothing outside these sections changes, so every address in
the library holds. A library that is thin already comes out as it is.
"""

import argparse
import re
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECTIONS = {b".nv_fatbin", b"__nv_relfatbin"}
MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2

_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, bytes of header, of payload; architecture
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, ...
_NOT_ZERO = re.compile(rb"[^\0]")


class NotThinnableError(Exception):
    """The file is no 64-bit ELF library, or its fat binaries are of another form."""


@dataclass(frozen=True)
class Entry:
    """One kernel image of a container, `start` to `end` in the file with its header."""

    kind: int
    arch: int
    start: int
    end: int


@dataclass
class Summary:
    """How many containers and entries were met, and the bytes of entries."""

    containers: int = 0
    kept: int = 0
    dropped: int = 0
    kept_bytes: int = 0
    dropped_bytes: int = 0


def thin(library: bytearray, arch: int) -> Summary:
    """Thins every fat binary of the library in place."""
    summary = Summary()
    for name, start, size in sections(library):
        if name in SECTIONS:
            for container in containers(library, start, start + size):
                _thin_container(library, container, arch, summary)
    return summary


def sections(library: bytearray) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset and size of each section."""
    if library[:6] != b"\x7fELF\x02\x01" or len(library) < 64:
        raise NotThinnableError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    if table + size * count > len(library) or names >= max(count, 1):
        raise NotThinnableError("its table of sections is cut off")
    headers = [_SECTION.unpack_from(library, table + size * index) for index in range(count)]
    for header in headers:
        name = headers[names][4] + header[0]
        yield bytes(library[name : library.index(b"\0", name)]), header[4], header[5]


def containers(library: bytearray, start: int, end: int) -> Iterator[int]:
    """Where each container of a section begins; between them are zeros alone."""
    while found := _NOT_ZERO.search(library, start, end):
        start = found.start()
        if end - start < _CONTAINER.size or _CONTAINER.unpack_from(library, start)[0] != MAGIC:
            raise NotThinnableError(f"no container at {start:#x}")
        _, _, header, size = _CONTAINER.unpack_from(library, start)
        if start + header + size > end:
            raise NotThinnableError(f"the container at {start:#x} leaves its section")
        following = start + header + size  # thinning shortens the size
        yield start
        start = following


def entries(library: bytearray, start: int, end: int) -> Iterator[Entry]:
    """The entries that lie from `start` to `end`."""
    while start < end:
        if end - start < _ENTRY.size:
            raise NotThinnableError(f"the entry at {start:#x} is cut off")
        kind, _, header, payload, arch = _ENTRY.unpack_from(library, start)
        following = start + header + payload
        if header < _ENTRY.size or following > end:
            raise NotThinnableError(f"the entry at {start:#x} leaves its container")
        yield Entry(kind, arch, start, following)
        start = following


def _thin_container(library: bytearray, start: int, arch: int, summary: Summary) -> None:
    magic, version, header, size = _CONTAINER.unpack_from(library, start)
    first, end = start + header, start + header + size
    found = list(entries(library, first, end))
    native = any(entry.kind == CUBIN and entry.arch == arch for entry in found)
    kept = [entry for entry in found if _stays(entry, arch, native)]
    packed = b"".join(library[entry.start : entry.end] for entry in kept)
    library[first:end] = packed.ljust(size, b"\0")
    _CONTAINER.pack_into(library, start, magic, version, header, len(packed))
    summary.containers += 1
    summary.kept += len(kept)
    summary.dropped += len(found) - len(kept)
    summary.kept_bytes += len(packed)
    summary.dropped_bytes += size - len(packed)


def _stays(entry: Entry, arch: int, native: bool) -> bool:
    if entry.kind == CUBIN:
        return entry.arch == arch
    return entry.kind != PTX or not native


def main(arguments: list[str] | None = None) -> int:
    """Thins the library named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path, help="may be the library itself")
    parser.add_argument("--arch", type=int, required=True, help="90 for H100 and H200")
    given = parser.parse_args(arguments)
    try:
        library = bytearray(given.library.read_bytes())
        summary = thin(library, given.arch)
        given.out.write_bytes(library)
        if given.out.resolve() != given.library.resolve():
            shutil.copymode(given.library, given.out)
    except (NotThinnableError, OSError) as error:
        print(f"{given.library}: {error}", file=sys.stderr)
        return 2
    print(
        f"{given.library.name}: {summary.containers} containers, "
        f"{summary.kept} entries kept ({summary.kept_bytes / 1e6:.1f} MB), "
        f"{summary.dropped} dropped ({summary.dropped_bytes / 1e6:.1f} MB)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
