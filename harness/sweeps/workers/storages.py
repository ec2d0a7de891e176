"""Where a study is kept (a journal file in the run's folder, SQLite, or a PostgreSQL server), and
whose turn it is to change it: one worker at a time, over all processes and machines. A turn ends
with its process: a file's lock goes with who held it, PostgreSQL's with its connection."""

import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, require
from harness.trial.failures import causes_of
from harness.trial.files import Lock, drop_half_line, in_turn

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalBackend
    from sqlalchemy import URL, Engine

_IDLE_SECONDS: Final = 60
"""PostgreSQL ends a turn in which its worker is silent for so long (its machine is gone)."""


Turn = Callable[[], AbstractContextManager[None]]
"""Waits until it is ours, and holds it for a block; raises what the storage raises."""


@contextmanager
def postgres_turn(engine: "Engine", name: str) -> Iterator[None]:
    """By an advisory lock of a transaction. A connection that breaks inside a turn ends it: another
    worker's may have begun (see Study). sqlalchemy's errors where the server cannot be reached."""
    from sqlalchemy import text

    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    idle = text(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
    connection = engine.connect()
    try:
        connection.execute(idle)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
        yield
    finally:
        with suppress(Exception):  # what was done in the turn stands, however it ended
            connection.close()


T = TypeVar("T")
JOURNAL: Final = "optuna.journal"
_FORMS: Final = "sqlite:///FILE or postgresql+pg8000://USER@HOST/DATABASE"
_SILENT_SECONDS: Final = 60.0
"""An answer of the server, and SQLite's lock, are waited for so long."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 5.0
_SAY_SECONDS: Final = 30.0
_TRANSIENT: Final = ("08", "40", "53", "57P")
"""SQLSTATE classes of what may be tried again (PostgreSQL 15, appendix A)."""


class Storage(Struct, frozen=True, kw_only=True):
    """Optuna's storage, the turn that its workers take, and how to get it back when it is gone."""

    optuna: "BaseStorage"
    turn: Turn
    forget_connections: Callable[[], None]
    name: str

    def patiently(
        self, act: Callable[[], T], say: Callable[[str], None], lost: Callable[[], None]
    ) -> T:
        """What `act` gives, tried again for as long as the storage cannot be reached; `lost` is
        called each time that it cannot, and `say` unless the next attempt helps."""
        said, pause = None, _FIRST_PAUSE_SECONDS
        for number in count():
            try:
                return act()
            except Exception as error:
                if not is_lost(error):
                    raise self._unusable(error) from None
                self.forget_connections()
                lost()
                now = time.monotonic()
                if number and (said is None or now - said > _SAY_SECONDS):
                    said = now
                    say(f"{self.name} does not answer; results are on disk, trying again")
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS)
        raise AssertionError  # numbers do not end

    def _unusable(self, error: Exception) -> Exception:
        """`error`, as one line where it is the database's."""
        from sqlalchemy.exc import SQLAlchemyError

        found = next((one for one in causes_of(error) if isinstance(one, SQLAlchemyError)), None)
        if found is None:
            return error
        reason = str(found).split("\n")[0]
        again = "results are on disk; fix this and run the same command to continue"
        return UserError("sweep.storage", self.name, f"cannot be used: {reason}", again)


def open_storage(asked: str, folder: Path, name: str) -> Storage:
    """The storage that ``sweep.storage=`` means, empty: the journal in `folder`; its tables are
    made where they are missing. UserError where it cannot be opened."""
    if not asked:
        return _journal(folder / JOURNAL)
    url = _url(asked)
    shown = url.render_as_string(hide_password=True)
    try:
        if url.get_backend_name() == "sqlite":
            turn = partial(in_turn, Path(f"{url.database}.lock"))
            return _tables(url, shown, turn, {"timeout": _SILENT_SECONDS})
        return _postgres(url, shown, name)
    except ImportError:
        require(url.get_driver_name(), "a PostgreSQL storage", "harness,sweep,postgresql")
        raise
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError("sweep.storage", shown, f"cannot be opened: {reason}", _FORMS) from None


def is_lost(error: BaseException) -> bool:
    """Whether it says that the storage cannot be reached now, and may be later."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    for one in causes_of(error):
        if isinstance(one, OperationalError) and isinstance(one.orig, sqlite3.Error):
            return "locked" in str(one.orig)
        if isinstance(one, InterfaceError | OperationalError | ConnectionError | TimeoutError):
            return True
        if isinstance(one, DBAPIError):
            told = one.orig.args[0] if one.orig is not None and one.orig.args else None
            state = str(told.get("C", "")) if isinstance(told, dict) else ""
            return one.connection_invalidated or state.startswith(_TRANSIENT)
    return False


def _url(asked: str) -> "URL":
    """`asked` as a URL; UserError where it is none of a storage that is known to work."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    with suppress(ArgumentError):
        url = make_url(asked)
        if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
            return url
        if url.get_backend_name() == "postgresql":
            given = url.drivername == "postgresql"
            return url.set(drivername="postgresql+pg8000") if given else url
    raise UserError("sweep.storage", asked, "is not the URL of a storage", _FORMS)


def _write_ahead(connection: Any, _: object) -> None:
    """Readers of SQLite wait for no writer; what a power cut takes is told again from disk."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _postgres(url: "URL", shown: str, name: str) -> Storage:
    from sqlalchemy import create_engine

    given: dict[str, Any] = {}
    if url.drivername == "postgresql+pg8000":
        given = {"timeout": _SILENT_SECONDS, "application_name": f"harness sweep {os.getpid()}"}
    if url.password is None and "PGPASSWORD" in os.environ:
        url = url.set(password=os.environ["PGPASSWORD"])
    turns = create_engine(url, connect_args=given)
    storage = _tables(url, shown, partial(postgres_turn, turns, name), given)

    def forget() -> None:
        turns.dispose()
        storage.forget_connections()

    return replace(storage, forget_connections=forget)


def _tables(url: "URL", shown: str, turn: Turn, given: dict[str, Any]) -> Storage:
    from optuna.storages import RDBStorage, get_storage
    from sqlalchemy import event

    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # connections that were cut
    with turn():  # two workers do not make the tables at once
        storage = RDBStorage(
            url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}"),
            engine_kwargs={"connect_args": given},
        )
    if url.get_backend_name() == "sqlite":
        event.listen(storage.engine, "connect", _write_ahead)
        storage.engine.dispose()
    forget, kept = storage.engine.dispose, get_storage(storage)
    return Storage(optuna=kept, turn=turn, forget_connections=forget, name=shown)


def _journal(path: Path) -> Storage:
    from optuna.storages import JournalStorage

    turn = partial(in_turn, path.with_suffix(".turn"))
    with turn():
        storage = JournalStorage(_journal_file(path))
    return Storage(optuna=storage, turn=turn, forget_connections=lambda: None, name=str(path))


def _journal_file(path: Path) -> "BaseJournalBackend":
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class WriteLock(JournalFileOpenLock):
        """An flock: it goes with its process, where Optuna's lock files stay for half a minute."""

        def acquire(self) -> bool:
            """Whole lines alone are in the file by then."""
            self._held = Lock(path.with_suffix(".lock"))
            self._held.wait()
            with suppress(OSError), open(path, "r+b") as file:
                drop_half_line(file)  # of a kill: nobody writes now
            return True

        def release(self) -> None:
            self._held.close()

    return JournalFileBackend(str(path), lock_obj=WriteLock(str(path)))
