"""What torch's own allocator recorded, read to the byte: allocator/README.md says how."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.logs.recorded_memory import AllocationKinds, read_recording
from tests.harness.logs.allocators_count import ACTIONS, SEGMENT_ACTIONS, assert_counted

HERE = Path(__file__).with_name("allocator")
Write = Callable[[object], Path]


@pytest.fixture(params=["segments", "expandable"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def whole(name: str) -> dict[str, Any]:
    packed = (HERE / f"{name}.pickle.gz").read_bytes()
    found: dict[str, Any] = pickle.loads(gzip.decompress(packed))
    return found


def test_the_peaks_are_the_allocators_own(name: str, whole: dict[str, Any], write: Write) -> None:
    counted = json.loads((HERE / f"{name}.json").read_text())
    assert_counted(read_recording(write(whole)), counted, name == "expandable")


def test_every_kind_of_event_is_there(name: str, whole: dict[str, Any]) -> None:
    found = {event["action"] for event in whole["device_traces"][0]}
    assert found == ACTIONS | SEGMENT_ACTIONS[name == "expandable"]


def test_events_that_were_dropped_change_nothing_of_the_rest(whole, write) -> None:
    """max_entries reached, or a recording that began later."""
    everything = read_recording(write(whole))
    trace = whole["device_traces"][0]
    for kept in range(len(trace) - 1, 600, -97):
        found = read_recording(write({**whole, "device_traces": [trace[-kept:]]}))
        assert found.num_bytes == everything.num_bytes[-len(found.num_bytes) :]
        assert found.num_events == kept


def test_a_stack_says_its_phase(whole: dict[str, Any]) -> None:
    """The thread that runs the backward on CUDA has no frame of Python."""
    kinds = AllocationKinds()
    allocations = [one for one in whole["device_traces"][0] if one["action"] == "alloc"]
    found = {kinds.kind_of(one) for one in allocations}
    assert {f"allocated in the {one}" for one in ("forward", "backward", "optimizer")} < found
    bare = [one for one in allocations if not any(".py" in f["filename"] for f in one["frames"])]
    assert {kinds.kind_of(one) for one in bare} == {"allocated in the backward"}


def test_a_folder_called_optimizer_something_is_none() -> None:
    frames = [{"filename": "/me/optimizer-study/train.py", "line": 1, "name": "forward"}]
    assert AllocationKinds().kind_of({"frames": frames}) == "allocated in the forward"
