"""Files are whole or absent, whatever kills the writer; logs may be garbage."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.trial import files

WRITER = """
import sys
from pathlib import Path
from harness.trial.files import write_atomic
number = 0
print("ready", flush=True)
while True:
    number += 1
    write_atomic(Path(sys.argv[1]), '{"number": %d, "rest": "%s"}' % (number, "x" * 200_000))
"""


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomic(path, "one")
    files.write_atomic(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomic(path, '{"number": 0, "rest": ""}')
    chance = random.Random(7)
    seen = set()
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        writer.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.06))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        values = json.loads(path.read_text())
        assert len(values["rest"]) == (200_000 if values["number"] else 0)
        seen.add(values["number"])
    assert len(seen) > 1
    files.write_atomic(path, "next")
    assert os.listdir(tmp_path) == ["a.json"], "the next writer of a file tidies up"


def test_only_what_a_dead_writer_of_ours_left_is_removed(tmp_path: Path) -> None:
    for name in (".a.json.7.tmp", ".b.json.7.tmp", ".notes.tmp", "a.json.7.tmp"):
        (tmp_path / name).write_text("half")
    with files.Reservation(tmp_path / "c.json", 1000) as alive:
        files.remove_temporaries(tmp_path, "a.json")
        assert sorted(os.listdir(tmp_path))[:2] == [".b.json.7.tmp", f".c.json.{os.getpid()}.tmp"]
        files.remove_temporaries(tmp_path)
        alive.commit("whole")
    assert sorted(os.listdir(tmp_path)) == [".notes.tmp", "a.json.7.tmp", "c.json"]


def test_a_reservation_holds_space_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with files.Reservation(path, 100_000):
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_size == 100_000
        assert not path.exists()
    assert not list(tmp_path.iterdir())


def test_a_committed_reservation_is_as_long_as_its_text(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with files.Reservation(path, 100_000) as reservation:
        reservation.commit("Ünicode")
    assert path.read_bytes() == "Ünicode".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", files.FULL)
def test_a_full_disk_is_seen_before_the_work(tmp_path, monkeypatch, number: int) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.Reservation(tmp_path / "result.json")
    assert not list(tmp_path.iterdir())


def test_a_failing_write_keeps_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.json"
    files.write_atomic(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_tail_of_a_log_is_printable_and_short(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(
        os.urandom(100_000) + b"\n" + b"w" * 1000 + b"\n10 %\r20 %\r\n\x1b[31mred\x1b[0m\n\n"
    )
    lines = files.tail(path, 3)
    assert lines == ("w" * 300, "20 %", "red")
    assert all(len(line) <= 300 for line in files.tail(path, 50))
    assert files.tail(tmp_path / "absent") == ()


def test_a_lock_is_held_by_the_child_that_inherits_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = files.Lock(path)
    assert lock.take()
    child = subprocess.Popen(["sleep", "30"], pass_fds=(lock.descriptor,))
    lock.close()
    try:
        with files.exclusive(path) as alone:
            assert not alone
        assert child.pid in files.holders(path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    with files.exclusive(path) as alone:
        assert alone
    assert child.pid not in files.holders(path)
