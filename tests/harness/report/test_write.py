"""All files are written, or what is missing is said in one line."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.report.document import SUMMARY_BYTES
from harness.report.facts import Facts
from harness.report.write import append_summary, step_summary_file, write_report

ALWAYS = {"report.md", "junit.xml", "bmf.json"}
Without = Callable[..., None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Makes packages impossible to import."""
    real = builtins.__import__

    def forbid(*packages: str) -> None:
        def fake(name: str, *rest: Any, **named: Any) -> Any:
            if name.split(".")[0] in packages:
                raise ImportError(name)
            return real(name, *rest, **named)

        monkeypatch.setattr(builtins, "__import__", fake)

    return forbid


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_everything_is_written(cpu_facts: Facts, tmp_path: Path) -> None:
    for package in ("matplotlib", "jinja2", "pandas", "pyarrow"):
        pytest.importorskip(package)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    written = write_report(cpu_facts, tmp_path / "report", summary)
    assert written.notes == ()
    files = {"report.html", "trials.csv", "trials.parquet", "figures"}
    assert names(tmp_path / "report") == ALWAYS | files
    assert all(path.exists() for path in written.files)
    text = (tmp_path / "report/report.md").read_text()
    for picture in (tmp_path / "report/figures").glob("*.svg"):
        assert f"(figures/{picture.name})" in text
    shown = summary.read_text()
    assert shown.startswith("before\n# toy on CPU (CPU times)\n")
    assert "figures/" not in shown


def test_without_packages_the_rest_is_written(cpu_facts: Facts, tmp_path, without: Without) -> None:
    without("matplotlib", "jinja2", "pandas")
    written = write_report(cpu_facts, tmp_path)
    assert names(tmp_path) >= ALWAYS
    assert not {"report.html", "trials.csv"} & names(tmp_path)
    (note,) = written.notes
    assert note == (
        "not written: figures, report.html, trials.csv, trials.parquet: "
        "needs jinja2, matplotlib, pandas; "
        "in the checkout run: pip install -e '.[report]'"
    )
    assert "figures/" not in (tmp_path / "report.md").read_text()


def test_without_pyarrow_only_parquet_is_missing(cpu_facts: Facts, tmp_path, monkeypatch) -> None:
    pd = pytest.importorskip("pandas")

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError("Missing optional dependency 'pyarrow'")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", refuse)
    written = write_report(cpu_facts, tmp_path)
    assert "trials.csv" in names(tmp_path)
    assert "trials.parquet" not in names(tmp_path)
    (note,) = written.notes
    assert note.startswith("not written: trials.parquet: needs pyarrow; ")


def test_a_summary_gets_the_room_that_is_left(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    file.write_bytes(b"x" * 1000)
    asked: list[int] = []
    append_summary(file, lambda limit: asked.append(limit) or "more")
    append_summary(tmp_path / "new", lambda limit: asked.append(limit) or "")
    assert asked == [SUMMARY_BYTES - 1001, SUMMARY_BYTES - 1]
    assert file.read_text().endswith("xmore")


def test_the_summary_is_githubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert step_summary_file() is None
    for name, file in {"": None, "/somewhere/summary": Path("/somewhere/summary")}.items():
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", name)
        assert step_summary_file() == file
