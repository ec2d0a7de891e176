"""What torch's allocator records on a GPU is what `harness snapshot` reads, to the byte."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "harness/logs"))
from allocators_count import ACTIONS, SEGMENT_ACTIONS, assert_counted
from recorded_step import JOB, SETTING

from advisor.cli.main import main as advise
from harness.cli.main import main
from harness.logs.plain_pickle import read_plain
from harness.logs.recorded_memory import read_recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
AS_RUN = (
    "model.bias_dropout_fusion=false",
    "model.apply_rope_fusion=false",
    "model.gradient_accumulation_fusion=false",
    "model.cross_entropy_fusion=none",
    "job.main_grads_dtype=bf16",
    "job.copies_gradients=false",
    "job.create_attention_mask=false",
)
"""The native backend's own (harness/backends/jobs.py, as_run)."""
NATIVE_ERROR = 0.005
"""Peak allocated of all native cells of results/measured: 0.42 % off at the worst."""


class Recorded(NamedTuple):
    path: Path
    counted: dict[str, Any]
    expandable: bool


@pytest.fixture(scope="module", params=[False, True], ids=["segments", "expandable segments"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """In a process of its own: an allocator is set up once."""
    folder = tmp_path_factory.mktemp("recorded")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("recorded_step.py")), str(folder)],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{request.param}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads((folder / "counted.json").read_text())
    return Recorded(folder / "rank0.pickle", counted, request.param)


def test_the_peaks_are_the_allocators_own(recorded: Recorded) -> None:
    assert_counted(read_recording(recorded.path), recorded.counted, recorded.expandable)


def test_every_kind_of_event_is_known(recorded: Recorded) -> None:
    whole: Any = read_plain(recorded.path)
    (trace,) = [trace for trace in whole["device_traces"] if trace]
    found = {event["action"] for event in trace}
    assert found == ACTIONS | SEGMENT_ACTIONS[recorded.expandable]


def test_a_step_and_its_prediction(recorded: Recorded, tmp_path, capsys) -> None:
    predicted, picture = tmp_path / "predicted.pickle", tmp_path / "both.svg"
    job = ["--model", "llama3.2_1b", "--gpus", "1xH100", "--recompute", SETTING, *JOB, *AS_RUN]
    assert advise([*job, "--memory-snapshot", str(predicted)]) == 0
    capsys.readouterr()
    files = [str(recorded.path), str(predicted)]
    assert main(["snapshot", *files, "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    one, other = (read_recording(Path(file)) for file in files)
    assert other.peak_bytes == recorded.counted["predicted"]
    assert other.peak_bytes == pytest.approx(one.peak_bytes, rel=NATIVE_ERROR)
    assert f"difference, predicted minus measured: {other.peak_bytes - one.peak_bytes:+,}" in said
    assert {"alive before the recording", "allocated in the forward"} <= set(one.kinds)
    assert picture.stat().st_size > 0
