"""A PostgreSQL server of its own, in a temporary folder, for the length of a test."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy

_INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
"""Where Debian keeps the server's programs, off the PATH."""


def missing() -> str:
    """Why there is no server to be had; empty where there is."""
    if _program("initdb") is None:
        return "PostgreSQL is not installed: .ci/install-system-packages"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return ""


class Server:
    """initdb, start, stop and what a server's operator does to connections."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        user = _user()
        self._as: dict[str, Any] = {"cwd": "/"}
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._run("initdb", "--auth=trust", "--username=harness", "--no-sync")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+pg8000://harness@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -h 127.0.0.1"
        self._run("pg_ctl", "-w", "-o", options, "-l", f"{self._folder}/log", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, after_seconds: float = 0.0) -> None:
        self.stop()
        time.sleep(after_seconds)
        self.start()

    def cut(self, pid: int | None = None) -> int:
        """End the connections of a client, or of all; how many there were."""
        with self._connect() as connection:
            ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> "
            ends += "pg_backend_pid() AND application_name LIKE :name"
            name = {"name": f"harness sweep {pid or '%'}"}
            return int(connection.execute(sqlalchemy.text(ends), name).scalar_one())

    @contextmanager
    def _connect(self) -> Iterator[sqlalchemy.Connection]:
        engine = sqlalchemy.create_engine(self.url)
        with engine.connect() as connection:
            yield connection
        engine.dispose()

    def _run(self, program: str, *words: str) -> None:
        found = _program(program)
        assert found is not None
        command = [found, "-D", f"{self._folder}/data", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._as)


@contextmanager
def server() -> Iterator[Server]:
    """A server that is gone when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        made = Server(folder)
        try:
            yield made
        finally:
            made.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name) or next((str(p / name) for p in reversed(_INSTALLED)), None)


def _user() -> pwd.struct_passwd | None:
    """Whom the server runs as where we are root; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    return names.get("postgres") or names.get("nobody")
