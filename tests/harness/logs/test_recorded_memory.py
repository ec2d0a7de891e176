"""Live bytes of a snapshot: added up by hand, as torch's profiler has them, and as predicted."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.report.exports.export_origin import ExportOrigin
from advisor.report.exports.torch_snapshot import torch_snapshot
from advisor.request.request import Request
from advisor.search.advise import advise
from harness.logs import recorded_memory
from harness.logs.recorded_memory import Recording, read_recording, recording_names
from tests.fuzz.mutate import places_of
from tests.harness.logs.snapshot_by_hand import event

Write = Callable[[object], Path]


def test_live_bytes_by_hand(snapshot_path: Path) -> None:
    found = read_recording(snapshot_path)
    weights = 1012  # of a block of 1024
    assert found.num_bytes == (
        weights,
        weights + 300,
        weights + 300 + 4000,
        weights + 4000,
        weights + 4000 + 700,
        weights + 700,
    )
    assert found.seconds == pytest.approx((0.0, 1.0, 1.5, 1.6, 1.6, 1.8))
    assert found.peak_bytes == 5712
    assert found.peak_seconds == pytest.approx(1.6)
    assert found.kinds == {
        "alive before the recording": weights,
        "allocated in the backward": 4000,
        "allocated in the optimizer": 700,
    }
    assert recording_names([found]) == ["measured"]


def test_a_part_of_a_recording_has_its_own_peak_and_clock(snapshot_path: Path) -> None:
    found = read_recording(snapshot_path, within=(0.5, 1.55))
    assert found.num_bytes == (1312, 5312)
    assert found.seconds == pytest.approx((0.5, 1.0))
    assert found.kinds["allocated in the forward"] == 300
    with pytest.raises(
        UserError, match=r"nothing is recorded between them; the recording is 1\.800 s long"
    ):
        read_recording(snapshot_path, within=(2.0, 3.0))


def test_a_free_that_was_requested_before_is_none_of_the_recordings(write, recorded) -> None:
    """Another stream still read the block: it was not allocated any more."""
    late = event("free_completed", 8192, 5000, 10)
    trace = recorded["device_traces"][0]
    found = read_recording(write({**recorded, "device_traces": [[*trace[:2], late, *trace[2:]]]}))
    assert found.num_bytes == read_recording(write(recorded)).num_bytes


def test_actions_that_were_skipped_are_reported(write: Write, recorded: dict[str, Any]) -> None:
    """skip_actions of torch 2.11: what goes unseen is counted, and said."""
    whole, trace = read_recording(write(recorded)), recorded["device_traces"][0]

    def without(*actions: str) -> Recording:
        kept = [one for one in trace if one["action"] not in actions]
        return read_recording(write({**recorded, "device_traces": [kept]}))

    late = without("free_requested")
    assert (late.num_bytes[-1], late.unseen_bytes) == (whole.num_bytes[-1], 0)
    never = without("free_requested", "free_completed")
    assert never.unseen_bytes == 300 + 4000
    assert never.peak_bytes == never.num_bytes[-1] == whole.num_bytes[-1] + never.unseen_bytes


def test_reserved_bytes_follow_segments(write: Write, recorded: dict[str, Any]) -> None:
    """Mapped parts of expandable segments too; what was there before is known from the end."""
    trace = recorded["device_traces"][0]
    path = write({**recorded, "device_traces": [[event("segment_unmap", 8192, 500, 0), *trace]]})
    at_end, later = 3884 + (2 << 20), 2 << 20
    assert read_recording(path).reserved_bytes == at_end
    assert read_recording(path, within=(0.5, 1.2)).reserved_bytes == at_end - later
    grown = [event("segment_map", 8192, 3 << 20, 0), event("segment_unmap", 8192, 3 << 20, 0)]
    path = write({**recorded, "device_traces": [[grown[0], *trace, grown[1]]]})
    assert read_recording(path).reserved_bytes == at_end + (3 << 20)


def test_each_device_has_its_own_blocks(write: Write, recorded: dict[str, Any]) -> None:
    trace, segments = recorded["device_traces"][0], recorded["segments"]
    two = {**recorded, "device_traces": [[], trace, trace[2:]]}
    two["segments"] = [one | {"device": device} for device in (1, 2) for one in segments]
    found = [read_recording(write(two), device).num_bytes[-1] for device in (1, 2)]
    assert found == [1712, 1712]
    assert read_recording(write(two)).device == 1


@pytest.mark.parametrize(("count", "lacking"), [(1000, True), (1024, True), (1001, False)])
def test_as_many_events_as_somebody_may_have_allowed(write, recorded, count, lacking) -> None:
    trace = recorded["device_traces"][0]
    filled = [*trace, *[trace[-1]] * (count - len(trace))]
    assert read_recording(write({**recorded, "device_traces": [filled]})).may_lack_events is lacking


def test_a_device_without_events_is_refused(snapshot_path: Path) -> None:
    assert read_recording(snapshot_path, device=0).device == 0
    with pytest.raises(UserError, match="--device = 1: has no events"):
        read_recording(snapshot_path, device=1)


def test_a_prediction_is_read_back_to_the_byte(write: Write) -> None:
    request = Request(model="llama3_70b", gpus="32xH100", recompute=("full:uniform:4",))
    row = advise(request).candidates[0]
    origin = ExportOrigin(request="advise", row="row 1", version="1")
    path = write(torch_snapshot(row, origin))
    for stage in row.evaluation.stages:
        found = read_recording(path, stage.stage)
        assert found.peak_bytes == stage.peak_allocated_bytes == sum(found.kinds.values())
        assert found.kinds["weights"] == stage.memory_bytes.weights
        assert found.said["row"] == origin.row
        assert (found.unseen_bytes, found.reserved_bytes) == (0, None)
        # torch writes whole microseconds
        assert found.seconds[-1] == pytest.approx(row.evaluation.step_time_seconds, abs=1e-6)
    assert recording_names([read_recording(path)]) == ["predicted"]


def test_a_recording_of_a_real_step_peaks_where_torchs_profiler_says(write: Write) -> None:
    """On the CPU, by torch's own converter, which leaves out the times."""
    torch = pytest.importorskip("torch")
    from torch.cuda._memory_viz import _profile_to_snapshot
    from torch.profiler._memory_profiler import Action, TensorKey

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(128, 64)
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    found = read_recording(write(_profile_to_snapshot(run)))
    live, levels = 0, []
    changes = {Action.CREATE: 1, Action.DESTROY: -1}
    timeline = [one for one in run._memory_profile().timeline if isinstance(one[2][0], TensorKey)]
    live = sum(size for _, action, _, size in timeline if action is Action.PREEXISTING)
    for _, action, _, size in timeline:
        live += changes.get(action, 0) * size
        levels.append(live)
    assert found.peak_bytes == max(levels) > 0
    assert found.seconds is None
    assert found.kinds["activations"] > 0
    assert (found.unseen_bytes, found.reserved_bytes) == (0, None)


def test_what_is_no_snapshot_is_said(write: Write, recorded: dict[str, Any]) -> None:
    for content, relation in (
        ([], "must be a dict of segments"),
        ({}, "no device_traces"),
        ({"device_traces": [[]]}, "no events: record with"),
        ({**recorded, "segments": None}, "no segments"),
        ({**recorded, "device_traces": [[{"action": "alloc", "addr": -1, "size": 2}]]}, "range"),
        ({**recorded, "device_traces": [[{"action": "alloc", "addr": 1, "size": True}]]}, "range"),
        ({**recorded, "device_traces": [[{"action": "alloc", "addr": 1}, 5]]}, "range"),
    ):
        with pytest.raises(UserError, match=relation) as error:
            read_recording(write(content))
        assert "is not a memory snapshot" in str(error.value)


def test_what_stands_in_many_places_is_counted(write: Write, recorded: dict[str, Any]) -> None:
    """A million names of one trace of a million events are a small file."""
    trace = [recorded["device_traces"][0][2]] * 3000
    for traces in ([trace] * 3000, [trace[:1]] * 5000):
        with pytest.raises(UserError, match="more than 2,000,000 events or 4,096 devices"):
            read_recording(write({**recorded, "device_traces": traces}))


def test_blocks_are_limited(write: Write, recorded: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(recorded_memory, "MOST_BLOCKS", 1)
    assert read_recording(write(recorded)).peak_bytes == 5712  # the first block is the weights


def test_a_broken_snapshot_is_reported_or_read(write: Write, recorded: dict[str, Any]) -> None:
    """Any value replaced by another of any type."""
    values = (None, -1, 1 << 63, 0.5, "x", [], {}, [[]], {"a": 1}, (1, 2), True)
    places = places_of(recorded)
    for seed in range(400):
        random = Random(seed)
        holder, key = random.choice(places)
        before, holder[key] = holder[key], random.choice(values)
        path = write(recorded)
        holder[key] = before
        try:
            read_recording(path)
        except UserError:
            continue
