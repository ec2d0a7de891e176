"""The worker of a rehearsal, in this process: from trial.json to result.json."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from harness.measure.memory import cap_memory  # noqa: E402
from harness.rehearsal.__main__ import run  # noqa: E402
from harness.trial.result import Phase, TrialStatus  # noqa: E402
from harness.trial.store import TrialFolder  # noqa: E402
from harness.trial.trial import Device  # noqa: E402
from tests.harness.rehearsal.toys import PEAKS, TRIAL, prediction  # noqa: E402


def test_every_stage_is_in_the_result(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    folder.create(replace(TRIAL, prediction=prediction(PEAKS)))  # of stage 0, and far off
    assert run([str(tmp_path)]) == 0
    result = folder.result()
    assert result.status is TrialStatus.OK
    assert [one.stage for one in result.stages] == [0, 1]
    assert [(peak.rank, peak.stage) for peak in result.memory] == [(0, 0), (4, 1)]
    assert [peak.allocated for peak in result.memory] == [one.peak for one in result.stages]
    assert [one.note for one in result.stages] == [
        "per layer, prediction and rehearsal keep the same tensors",
        "",
    ]
    assert result.times is None
    assert result.flops is None
    assert folder.state().step == 2  # one a stage


def test_a_cpu_tells_times_of_the_slowest_stage(tmp_path: Path) -> None:
    workload = replace(TRIAL.workload, device=Device.CPU)
    folder = TrialFolder(tmp_path)
    folder.create(replace(TRIAL, workload=workload))
    assert run([str(tmp_path)]) == 0
    result = folder.result()
    assert result.times.clock == "host"
    slowest = max(one.compute_seconds or 0 for one in result.stages)
    assert result.times.seconds == (slowest,)  # one step was asked for


def test_what_megatron_refuses_is_a_failed_trial_with_its_words(tmp_path: Path) -> None:
    """Three microbatches, and the interleaved schedule wants a multiple of two."""
    layout = replace(TRIAL.workload.layout, virtual_pipeline_model_parallel_size=2)
    workload = replace(TRIAL.workload, layout=layout, global_batch_size=6)
    folder = TrialFolder(tmp_path)
    folder.create(replace(TRIAL, workload=workload))
    assert run([str(tmp_path)]) == 1
    result = folder.result()
    assert result.status is TrialStatus.FAILED
    assert result.evidence.phase is Phase.FORWARD
    assert "micro-batch" in result.evidence.message or "microbatch" in result.evidence.message


@pytest.mark.parametrize(("memory_bytes", "fractions"), [(90, [0.5]), (160, []), (None, [])])
def test_memory_is_capped_to_that_of_the_gpu_rehearsed(
    memory_bytes: int | None, fractions: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the target's 90 bytes its context takes the 10 that are in use here."""
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (150, 160))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    cap_memory(memory_bytes)
    assert asked == fractions
