"""The snapshot holds the predicted peaks to the byte, and torch's own readers read it."""

import pickle
import pickletools
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.answer.answer import RankedEvaluation
from advisor.report.exports.export_origin import PREDICTED, ExportOrigin
from advisor.report.exports.torch_snapshot import MOST_BLOCKS, torch_snapshot, write_snapshot
from advisor.request.request import Request
from advisor.search.advise import advise

pytestmark = pytest.mark.slow

ORIGIN = ExportOrigin(request="advise --model m", row="row 1: none", version="1.0")
LLAMA = Request(model="llama3_70b", gpus="32xH100", quick=True)
REQUESTS = {
    "interleaved": replace(LLAMA, recompute=("selective:mlp", "full:uniform:4")),
    "offload": replace(LLAMA, recompute=("selective:mlp+offload=core_attn",)),
    "experts": Request(model="gpt_oss_120b", gpus="64xH100", recompute=("full:block:7",)),
    "graphs": replace(LLAMA, recompute=("none",), overrides=("job.cuda_graph_impl=local",)),
    "sharded parameters": Request(model="llama3_8b", gpus="8xH100", framework="torchtitan"),
    "many microbatches": Request(
        model="llama3_8b", gpus="1xH100", recompute=("none",), global_batch_size=512
    ),
}


@pytest.fixture(scope="module", params=REQUESTS)
def rows(request: pytest.FixtureRequest) -> tuple[RankedEvaluation, ...]:
    return advise(replace(REQUESTS[request.param], quick=True)).candidates


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    """As a reader has it."""
    row = advise(REQUESTS["interleaved"]).candidates[0]
    loaded: dict[str, Any] = pickle.loads(pickle.dumps(torch_snapshot(row, ORIGIN)))
    return loaded


def test_the_most_alive_is_the_peak_to_the_byte(rows: tuple[RankedEvaluation, ...]) -> None:
    for row in rows:
        found = torch_snapshot(row, ORIGIN)
        for stage in row.evaluation.stages:
            trace, segment = found["device_traces"][stage.stage], found["segments"][stage.stage]
            most, left = simulated(trace)
            assert most == stage.peak_allocated_bytes
            assert left == segment["allocated_size"]
            assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
            assert segment["total_size"] >= most
            assert Counter(e["action"] for e in trace)["alloc"] <= 2 * MOST_BLOCKS


def simulated(trace: list[dict[str, Any]]) -> tuple[int, int]:
    """The most bytes alive at once, and those alive at the end, none over another."""
    live: dict[int, int] = {}
    alive = most = seconds = 0
    for event in trace:
        assert event["time_us"] >= seconds
        seconds = event["time_us"]
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            alive += event["size"]
            most = max(most, alive)
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
            alive -= event["size"]
    ends = [(address, address + size) for address, size in sorted(live.items())]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    return most, alive


def test_frames_name_tensors_layers_and_passes(snapshot: dict[str, Any]) -> None:
    stacks = (
        [frame["name"] for frame in event["frames"]]
        for event in snapshot["device_traces"][0]
        if event["action"] == "alloc" and event["category"] == "activation"
    )
    (first, *_) = (stack for stack in stacks if stack[0].startswith("query"))
    assert first[1] == "core_attention"
    assert first[2].startswith("layer 0 (")
    assert first[3] == "forward of microbatch 0"
    assert snapshot["allocator_settings"]["what"] == PREDICTED
    assert snapshot["allocator_settings"]["blocks"] == "each block of kept memory is one tensor"


def test_it_holds_plain_data_alone(rows: tuple[RankedEvaluation, ...]) -> None:
    content = pickle.dumps(torch_snapshot(rows[0], ORIGIN), protocol=4)
    names = {operation.name for operation, *_ in pickletools.genops(content)}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "OBJ", "INST"}


def test_many_blocks_are_drawn_together_and_that_is_said(tmp_path: Path) -> None:
    row = advise(replace(REQUESTS["many microbatches"], quick=True)).candidates[0]
    said = write_snapshot(row, tmp_path / "s.pickle", ORIGIN)
    assert said == "each block of kept memory is one layer"


def test_torch_reads_it(snapshot: dict[str, Any]) -> None:
    torch_viz = pytest.importorskip("torch.cuda._memory_viz")
    text = torch_viz.memory(snapshot, format_flamegraph=str)
    assert "main gradients" in text
    assert "active_allocated" in torch_viz.segments(snapshot, format_flamegraph=str)
    held = sum(segment["allocated_size"] for segment in snapshot["segments"])
    assert f"total_allocated: {torch_viz.Bytes(held)}" in torch_viz.segsum(snapshot)
    assert "cudaMalloc" in torch_viz.trace(snapshot)
    both = torch_viz.compare(snapshot["segments"], snapshot["segments"][:1], format_flamegraph=str)
    assert both.startswith("only_before;stream_0")
    for page in (torch_viz.trace_plot(snapshot), torch_viz.segment_plot(snapshot)):
        assert "snapshot.pickle" in page
    torch_viz.trace_plot(snapshot, filter_freed=True)
    kept = [event["action"] for event in snapshot["device_traces"][0]]
    assert set(kept) == {"segment_alloc", "alloc"}
