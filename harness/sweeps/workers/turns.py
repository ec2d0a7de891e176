"""Whose turn it is to change a study: one worker at a time, over all processes and machines.

A turn ends with its process: a file's lock goes with who held it, PostgreSQL's with its connection.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Engine

_IDLE_SECONDS: Final = 60
"""PostgreSQL ends a turn in which its worker is silent for so long (its machine is gone)."""


class Turn(Protocol):
    """Waits until it is ours, and holds it for the length of a block; of a file, `in_turn` does."""

    def __call__(self) -> AbstractContextManager[None]:
        """Raises what the storage raises where it cannot be reached."""


class PostgresTurn:
    """By an advisory lock of a transaction. A connection that breaks inside a turn ends it: what is
    done in one must bear that another worker's has begun (see Study)."""

    def __init__(self, engine: "Engine", name: str) -> None:
        self._engine = engine
        digest = hashlib.sha256(name.encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """sqlalchemy's errors where the server cannot be reached."""
        from sqlalchemy import text

        idle = text(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
        connection = self._engine.connect()
        try:
            connection.execute(idle)
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": self._key})
            yield
        finally:
            with suppress(Exception):  # what was done in the turn stands, however it ended
                connection.close()
