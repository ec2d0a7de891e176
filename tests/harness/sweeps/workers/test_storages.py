"""Which errors of a storage are waited for, and which end a sweep in one line."""

import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError

from advisor.base.errors import UserError
from harness.sweeps.workers import storages
from harness.sweeps.workers.storages import is_lost, open_storage


def _server(state: str) -> DatabaseError:
    """What pg8000 says of a server's error, as sqlalchemy hands it on."""
    return DatabaseError("SELECT 1", {}, Exception({"S": "FATAL", "C": state}))


def _sqlite(text: str) -> OperationalError:
    return OperationalError("UPDATE", {}, sqlite3.OperationalError(text))


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (InterfaceError("SELECT 1", {}, Exception("network error")), True),
        (_server("57P01"), True),
        (_server("57P03"), True),
        (_server("53300"), True),
        (_server("42501"), False),
        (_sqlite("database is locked"), True),
        (_sqlite("database or disk is full"), False),
        (ConnectionResetError(), True),
        (OSError(28, "No space left on device"), False),
        (KeyError("x"), False),
    ],
)
def test_what_may_be_better_later(error: Exception, lost: bool) -> None:
    assert is_lost(error) is lost
    wrapped = StorageInternalError("An exception is raised during the commit.")
    wrapped.__cause__ = error
    assert is_lost(wrapped) is lost


def test_it_is_tried_until_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "_FIRST_PAUSE_SECONDS", 0.0)
    storage = open_storage("", tmp_path, "x")
    left = [_server("57P01")] * 4
    said: list[str] = []
    times: list[int] = []

    def act() -> str:
        if left:
            raise left.pop()
        return "told"

    assert storage.patiently(act, said.append, lambda: times.append(1)) == "told"
    assert len(times) == 4
    (line,) = said
    assert line.endswith("does not answer; results are on disk, trying again")


def test_what_will_not_get_better_is_one_line(tmp_path: Path) -> None:
    storage = open_storage("", tmp_path, "x")

    def act() -> None:
        raise _sqlite("database or disk is full")

    with pytest.raises(UserError, match=r"cannot be used: .*disk is full") as raised:
        storage.patiently(act, print, lambda: None)
    assert "\n" not in str(raised.value)
