"""The trace holds the step: slices that fill it, counters that reach the predicted peaks."""

import gzip
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, convert, json

from advisor.answer.answer import Answer
from advisor.report.exports.chrome_trace import PASSES, PHASES, chrome_trace, write_trace
from advisor.report.exports.export_origin import PREDICTED, ExportOrigin
from advisor.request.request import Request
from advisor.search.advise import advise

ORIGIN = ExportOrigin(request="advise --model m", row="row 1: none", version="1.0")
REQUESTS = {
    "interleaved": Request(model="llama3_70b", gpus="32xH100", recompute=("full:uniform:2",)),
    "one GPU": Request(model="llama3_8b", gpus="1xH100", recompute=("none",)),
    "host": Request(
        model="llama3_8b",
        gpus="4xH100",
        framework="deepspeed",
        recompute=("none",),
        overrides=("job.optimizer_cpu_offload=true",),
    ),
}


class Slice(Struct, forbid_unknown_fields=True):
    """A complete event of the Trace Event Format."""

    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, Any]


@pytest.fixture(scope="module", params=REQUESTS)
def answer(request: pytest.FixtureRequest) -> Answer:
    return advise(REQUESTS[request.param])


def events(answer: Answer) -> dict[str, list[dict[str, Any]]]:
    """By phase, as a reader has them."""
    document = json.decode(json.encode(chrome_trace(answer.candidates[0], ORIGIN)))
    assert document["otherData"]["what"] == PREDICTED
    assert document["otherData"]["request"] == ORIGIN.request
    found = defaultdict(list)
    for event in document["traceEvents"]:
        found[event.pop("ph")].append(event)
    assert set(found) == {"M", "X", "C"}
    return found


def test_phases_fill_the_step_and_no_slice_reaches_into_another(answer: Answer) -> None:
    evaluation = answer.candidates[0].evaluation
    threads = defaultdict(list)
    for event in events(answer)["X"]:
        one = convert(event, Slice)
        threads[one.pid, one.tid].append(one)
    assert len(threads) == 1 + 2 * len(evaluation.stages)
    for (process, thread), slices in threads.items():
        ends = [(nanoseconds(one.ts), nanoseconds(one.ts + one.dur)) for one in slices]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        filled = sum(end - start for start, end in ends)
        if process and thread == PHASES:
            assert filled == ends[-1][1]
        if thread == PHASES or not process:
            # the ends of both sums are rounded to a nanosecond, and are sums of floats
            assert filled == pytest.approx(evaluation.step_time_seconds * 1e9, abs=1.001)


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1e3)


def test_passes_are_all_microbatches_through_all_chunks(answer: Answer) -> None:
    job = answer.job
    of_first = [e for e in events(answer)["X"] if (e["pid"], e["tid"]) == (1, PASSES)]
    for way in ("forward", "backward"):
        passes = [e for e in of_first if e["name"].startswith(way)]
        chunks = job.layout.virtual_pipeline_model_parallel_size
        assert len(passes) == job.num_microbatches * chunks
        assert {e["args"]["microbatch"] for e in passes} == set(range(job.num_microbatches))


def test_counters_reach_the_peak_of_every_stage_to_the_byte(answer: Answer) -> None:
    counters = events(answer)["C"]
    for stage in answer.candidates[0].evaluation.stages:
        own = [event for event in counters if event["pid"] == stage.stage + 1]
        live = [e["args"]["bytes"] for e in own if e["name"] == "live memory"]
        kinds = [sum(e["args"].values()) for e in own if e["name"] == "live memory by kind"]
        assert max(live) == stage.peak_allocated_bytes
        assert kinds == live
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(own))


def test_every_process_and_thread_has_a_name(answer: Answer) -> None:
    found = events(answer)
    named = {(e["pid"], e["tid"]) for e in found["M"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in found["X"]} == named
    assert {e["pid"] for e in found["M"] if e["name"] == "process_name"} == {p for p, _ in named}


def test_a_compressed_file_holds_the_same(answer: Answer, tmp_path: Path) -> None:
    row = answer.candidates[0]
    plain, packed = tmp_path / "step.json", tmp_path / "step.json.gz"
    write_trace(row, plain, ORIGIN)
    write_trace(row, packed, ORIGIN)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
