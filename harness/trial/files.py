"""Files that are whole or absent: atomic writes, reserved space, locks that outlive a crash."""

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
RESERVED_BYTES: Final = 256 * 1024
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_TAIL_BYTES: Final = 16 * 1024
_TAIL_WIDTH: Final = 300
_TEMPORARY: Final = ".tmp"
_OURS: Final = re.compile(r"\.(.+)\.\d+\.tmp")


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that `path` is always the old file or the new one, even after a power cut."""
    with Reservation(path, 0) as reservation:
        reservation.commit(text)


class Reservation:
    """Disk space taken before a long measurement, so that its result can be written after it. A
    temporary file next to `path` holds `num_bytes`; `commit` fills it and renames it to `path`.
    Raises OSError (ENOSPC) at once where the space is not there."""

    def __init__(self, path: Path, num_bytes: int = RESERVED_BYTES) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
        remove_temporaries(path.parent, path.name)
        self._file = _open_locked(self._temporary)
        try:
            if num_bytes:
                os.posix_fallocate(self._file.fileno(), 0, num_bytes)
        except OSError:
            self.close()
            raise

    def commit(self, text: str) -> None:
        """Write, synchronise, rename."""
        data = text.encode(errors="replace")  # an argument that is no text may be in it
        self._file.seek(0)
        self._file.write(data)
        self._file.flush()
        self._file.truncate(len(data))
        os.fsync(self._file.fileno())
        os.replace(self._temporary, self._path)
        _sync_folder(self._path.parent)

    def close(self) -> None:
        """Give back what was not committed."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink()

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_locked(path: Path) -> IO[bytes]:
    """A new file that `remove_temporaries` leaves alone for as long as it is open."""
    while True:
        file = open(path, "wb")  # noqa: SIM115 (lives until the reservation's close)
        with suppress(OSError):  # some file systems know no locks
            fcntl.flock(file, fcntl.LOCK_SH)
        if path.exists():  # not removed between the two
            return file
        file.close()


def remove_temporaries(folder: Path, name: str = "") -> None:
    """Delete what killed writers, of `name` if it is given, left behind."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        match = _OURS.fullmatch(path.name)
        if match and name in ("", match[1]):
            with suppress(OSError), exclusive(path) as free:
                if free:
                    path.unlink()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some network file systems know no fsync of folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_json_line(path: Path, values: Mapping[str, Any]) -> None:
    """Append one object as a line, on disk when this returns, in place of half a line of a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        drop_half_line(file)
        file.write((json.dumps(values, sort_keys=True) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def drop_half_line(file: IO[bytes]) -> None:
    """Cut off what a kill in the middle of a write has left after the last whole line."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def tail(path: Path, lines: int = 20) -> tuple[str, ...]:
    """Last lines of a log that may be long or garbage: bounded, printable, one line each."""
    try:
        with open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    # a progress bar writes carriage returns: the last state of such a line is what counts
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    clean = (_ESCAPES.sub("", line).rstrip()[:_TAIL_WIDTH] for line in shown)
    return tuple([line for line in clean if line][-lines:])


class Lock:
    """An flock on a file; a child process that inherits `descriptor` keeps it after our death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, *, shared: bool = False) -> bool:
        """Whether the lock is ours now, or ours too where it is `shared`; never waits."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """The lock is ours alone when this returns."""
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Close our descriptor: the lock is free once no child holds it either."""
        os.close(self.descriptor)


def holders(path: Path) -> tuple[int, ...]:
    """Processes other than this one that have `path` open; empty where /proc tells nothing."""
    wanted = os.path.realpath(path)
    with suppress(OSError):
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return tuple(pid for pid in pids if pid != os.getpid() and wanted in _open_files(pid))
    return ()


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, or is someone else's
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


@contextmanager
def exclusive(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Whether this process alone, or with others that share it, holds `path` within the block."""
    lock = Lock(path)
    try:
        yield lock.take(shared=shared)
    finally:
        lock.close()


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Waits until this process alone holds `path`, for the length of the block."""
    lock = Lock(path)
    try:
        lock.wait()
        yield
    finally:
        lock.close()
