"""Records one training step as docs/tools.md tells users to: python recorded_step.py FOLDER.

Writes rank0.pickle, and counted.json: what the allocator itself counted over the same time, and the
peak that was predicted. After the step comes what else an allocator writes.
"""

import json
import sys
from pathlib import Path

import torch

from harness.backends.native import build
from harness.measure.training_step import Silent
from harness.planner.device import Machine
from harness.planner.planning import make_plan
from harness.planner.run_request import compose
from harness.trial.trial import Device, Trial

JOB = (
    "model.num_layers=2",
    "model.transformer_impl=local",
    "model.attention_backend=flash",
    "model.share_embeddings_and_output_weights=false",
    "job.seq_length=2048",
    "job.global_batch_size=2",
)
EXPERIMENT, SETTING = "llama3.2_1b_1xh100", "none"


def planned() -> Trial:
    config = compose([f"experiment={EXPERIMENT}", *JOB, f"recompute.settings=['{SETTING}']"])
    machine = Machine(device=Device.CUDA, gpu_names=(torch.cuda.get_device_name(),))
    return make_plan(config, machine).settings[0].trial


def write_everything_else() -> None:
    """A tensor that another stream holds, running out of memory, and giving segments back."""
    torch.cuda.memory._set_memory_metadata("after the step")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.autograd.profiler.record_function("on another stream"):
        shared = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    shared.record_stream(torch.cuda.current_stream())
    del shared
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)  # refused before the driver is asked
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    torch.cuda.memory._snapshot()


def main(folder: Path) -> None:
    trial = planned()
    step = build(trial.workload, 1)
    step.run(Silent())
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(context="alloc", max_entries=1_000_000)
    step.run(Silent())
    write_everything_else()
    torch.cuda.memory._dump_snapshot(str(folder / "rank0.pickle"))
    counted = {"predicted": trial.prediction.peak_allocated_bytes, **torch.cuda.memory_stats()}
    (folder / "counted.json").write_text(json.dumps(counted))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
