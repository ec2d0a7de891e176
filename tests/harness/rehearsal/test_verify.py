import io
import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.record import as_dict
from harness.backends import lone_ranks
from harness.rehearsal import verify
from tests.harness.rehearsal.test_prediction import JOB


def candidate(recompute: str = "none", **changes: Any) -> dict[str, Any]:
    job = replace(JOB, **changes)
    values = {
        "model": as_dict(job.model),
        "layout": as_dict(job.layout),
        "config": as_dict(job.config),
        "gpu": "H100-SXM-80GB",
        "num_gpus": 8,
        "recompute": recompute,
        "stage": 1,
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def reported(monkeypatch: pytest.MonkeyPatch, capsys: Any, *candidates: dict[str, Any]) -> Any:
    question = json.dumps({"config_dir": None, "candidates": candidates})
    monkeypatch.setattr(sys, "stdin", io.StringIO(question))
    monkeypatch.setattr(verify.signal, "signal", lambda *_: None)
    assert verify.main() == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_both_figures_and_what_differs() -> None:
    pytest.importorskip("megatron.core")
    answer = verify.answer(candidate(), None)
    assert answer["stage"] == 1
    assert answer["predicted_bytes"] == pytest.approx(answer["rehearsed_bytes"], rel=0.02)
    assert answer["explanation"] == ""
    assert "transformer_impl local" in answer["differences"]


def test_what_cannot_be_rehearsed_is_an_answer_too(monkeypatch, capsys) -> None:
    monkeypatch.setattr(lone_ranks, "missing", lambda: "")
    found = reported(monkeypatch, capsys, candidate("none+offload=core_attn"))
    (answer,) = found["candidates"]
    assert "fine-grained offload needs Transformer Engine" in answer["refused"]


def test_without_megatron_nothing_is_rehearsed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(lone_ranks, "missing", lambda: "megatron-core")
    found = reported(monkeypatch, capsys, candidate())
    assert found["candidates"] is None
    assert found["refused"][0] == "needs megatron-core"
    assert "pip install -e '.[megatron]'" in found["refused"][1]


@pytest.mark.parametrize(
    ("then", "shown"),
    [("return {}", False), ("log.error('x'); return {}", True), ("raise OSError", True)],
    ids=["answered", "error logged", "no answer"],
)
def test_what_a_library_logs_is_shown_where_something_fails(then: str, shown: bool) -> None:
    """In a process of its own: under pytest, warnings that nobody handles reach no stderr."""
    code = (
        "import logging\nfrom harness.rehearsal import verify\nlog = logging.getLogger('x')\n"
        f"def answer(*_):\n    log.warning('talk'); {then}\n"
        "verify.lacking, verify.answer = lambda: None, answer\nverify.main()"
    )
    asked = json.dumps({"config_dir": None, "candidates": [candidate()]})
    done = subprocess.run(
        [sys.executable, "-c", code], input=asked, capture_output=True, text=True, check=False
    )
    first, *others = done.stderr.splitlines()
    assert first == "advise: rehearsing 1/1  none, stage 1"
    assert ("talk" in others) == shown == bool(others)


def test_jobs_travel_whole() -> None:
    config = replace(JOB.config, precision=Precision.FP8_CURRENT)
    job = replace(JOB, config=config)
    assert verify._job(candidate(config=config), None) == job
