"""optuna-dashboard opens what a sweep leaves, on every storage."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

pytest.importorskip("optuna_dashboard")
pytest.importorskip("pg8000")

import optuna_dashboard

from harness.sweeps.workers.storages import open_storage
from harness.trial.store import RunFolder
from tests.harness.sweeps.workers import postgres
from tests.harness.sweeps.workers.worker import work

App = Callable[..., Any]


def _get(app: App, path: str) -> Any:
    environ: dict[str, Any] = {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
    setup_testing_defaults(environ)
    environ["wsgi.errors"] = io.StringIO()
    statuses: list[str] = []
    body = b"".join(app(environ, lambda status, *_: statuses.append(status)))
    assert statuses == ["200 OK"], body
    return json.loads(body)


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "postgresql":
        yield f"sqlite:///{tmp_path}/study.db" if request.param == "sqlite" else ""
        return
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as server:
        yield server.url


def test_studies_and_trials_as_the_page_reads_them(url: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    work(url, folder, points=3, seconds=0.0, timeout=60.0)
    app = optuna_dashboard.wsgi(open_storage(url, folder.path, "x").optuna)
    (study,) = _get(app, "/api/studies")["study_summaries"]
    assert study["study_name"] == "x"
    shown = _get(app, f"/api/studies/{study['study_id']}")
    assert shown["objective_names"] == ["step time, s", "peak memory, GiB"]
    assert [trial["state"] for trial in shown["trials"]] == ["Complete"] * 3
    attributes = {one["key"]: one["value"] for one in shown["trials"][0]["user_attrs"]}
    assert json.loads(attributes["predicted_step_seconds"]) == 0.012
    assert json.loads(attributes["measured_step_seconds"]) == 0.01
