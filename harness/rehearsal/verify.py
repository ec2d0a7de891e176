"""What `advise --verify` asks: candidates as JSON on stdin, rehearsed on fake tensors, JSON out.
``{"config_dir", "candidates": [{"model", "layout", "config", "gpu", "num_gpus", "recompute",
"stage"}]}`` gives ``{"candidates": [{"stage", "predicted_bytes", "rehearsed_bytes", "explanation",
"differences", "refused"}]}``; candidates is null where nothing can be rehearsed here, and
``refused`` says why."""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.search.evaluate import Evaluator
from harness.backends.jobs import as_run
from harness.backends.lone_ranks import as_installed, check, lacking, lone_ranks
from harness.planner.forecast import differences
from harness.rehearsal.prediction import explained, predicted_stages
from harness.rehearsal.trials import check_legal, workload_of
from harness.trial.trial import Backend, Device, MeasurementPlan

_WHERE = "verification"


def main() -> int:
    """Read, rehearse, write; progress goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the advisor says what is to be said
    asked = json.load(sys.stdin)
    refused = lacking()
    if refused is not None:
        json.dump({"candidates": None, "refused": refused}, sys.stdout)
        return 0
    config_dir = Path(asked["config_dir"]) if asked["config_dir"] else None
    candidates = asked["candidates"]
    answers = []
    for number, candidate in enumerate(candidates, start=1):
        what = f"{candidate['recompute']}, stage {candidate['stage']}"
        print(f"advise: rehearsing {number}/{len(candidates)}  {what}", file=sys.stderr, flush=True)
        with _libraries_held_back():
            answers.append(answer(candidate, config_dir))
    json.dump({"candidates": answers}, sys.stdout)
    return 0


@contextmanager
def _libraries_held_back() -> Iterator[None]:
    """What libraries log is shown with an error alone: Megatron Core warns of its own internals."""
    held = MemoryHandler(sys.maxsize, logging.ERROR, logging.StreamHandler(), flushOnClose=False)
    root = logging.getLogger()
    root.addHandler(held)
    try:
        yield
    except Exception:
        held.flush()
        raise
    finally:
        root.removeHandler(held)
        held.close()


def answer(candidate: dict[str, Any], config_dir: Path | None) -> dict[str, Any]:
    """One candidate's worst stage, predicted and rehearsed; or why it cannot be."""
    stage, spec = int(candidate["stage"]), str(candidate["recompute"])
    try:
        asked = _job(candidate, config_dir)
        parts_of(asked.config.framework).harness.job(asked)  # refuses what the backend lacks
        job, under = as_installed(asked)
        check_legal(job, [spec])
        workload = workload_of(job, spec, Device.FAKE)
        check(workload)
        run = as_run(job, workload)
        evaluator = Evaluator(run, load_calibration(job.gpu, config_dir))
        (predicted,) = predicted_stages(evaluator, spec, (stage,), Device.FAKE)
        ranks = lone_ranks(workload)
        rehearsed = ranks.rehearse(stage, MeasurementPlan()).peaks
    except (UserError, ValueError, AssertionError) as error:  # the latter two: the framework's own
        return {"stage": stage, "refused": " ".join(str(error).split())}
    explanation, words = explained(predicted, rehearsed), differences(job, run, Backend.REHEARSAL)
    if explanation:
        words += (f"{spec}, stage {stage}: {ranks.storage_differences()}",)
    return {
        "stage": stage,
        "predicted_bytes": predicted.peak,
        "rehearsed_bytes": rehearsed.peak,
        "explanation": explanation,
        "differences": "; ".join((*words, under)),
    }


def _job(values: dict[str, Any], config_dir: Path | None) -> Job:
    return Job(
        model=read_record(ModelSpec, values["model"], _WHERE, "model."),
        layout=read_record(ParallelLayout, values["layout"], _WHERE, "layout."),
        config=read_record(JobConfig, values["config"], _WHERE, "job."),
        gpu=load_gpu(values["gpu"], config_dir),
        num_gpus=int(values["num_gpus"]),
    )


if __name__ == "__main__":
    sys.exit(main())
