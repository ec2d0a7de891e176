"""Questions of public threads on adapters, models that see and new models, as their authors would
type them: the exit code, the peak of a row by hand or as it was published, and what is said.

Answers were decided before they were asked for. `by hand` has the arithmetic where it is long."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from advisor.cli.main import main

QUESTIONS = json.loads(Path(__file__).with_name("adapters.json").read_text())
_ROW = re.compile(r"(?m)^ *\d+  (\S+)(?: \([a-z ]+\))? +~?([\d.]+) \(")


@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: one["id"])
def test_the_answer(
    one: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in one.get("files", {}).items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("\n".join(lines) + "\n")
    found = main(shlex.split(one["args"]))
    out, err = capsys.readouterr()
    page = f"{out}{err}"
    assert found == one.get("exit", found)
    if "peak" in one:
        peaks = {name: float(peak) for name, peak in reversed(_ROW.findall(page))}
        low, high = one["peak"]
        assert low <= peaks[one["row"]] <= high
    for words in one.get("says", ()):
        assert re.search(words, " ".join(page.split())), words


def test_they_are_of_many_kinds() -> None:
    assert len({one["kind"] for one in QUESTIONS}) >= 14
