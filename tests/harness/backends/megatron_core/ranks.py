"""One of two ranks: its losses under each layout. The test is one, this as a program the other."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from advisor.job.layout import ParallelLayout
from harness.backends.megatron_core import build
from harness.measure.training_step import Silent
from tests.harness.backends.megatron_core.workloads import LLAMA, MOE, workload

PIPELINE = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
LAYOUTS = {
    "tp": (LLAMA, ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=True)),
    "pp": (LLAMA, ParallelLayout(**PIPELINE)),
    "dp": (LLAMA, ParallelLayout(data_parallel_size=2)),
    "ep": (MOE, ParallelLayout(data_parallel_size=2, expert_model_parallel_size=2)),
}


def train(rank: int, store: Path) -> dict[str, list[float]]:
    """Losses of four steps by layout; the ranks meet in the file `store`."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=90),
    )
    try:
        return {name: _losses(model, layout) for name, (model, layout) in LAYOUTS.items()}
    finally:
        dist.destroy_process_group()


def _losses(model: object, layout: ParallelLayout) -> list[float]:
    step = build(workload(model, layout=layout), 1234)
    try:
        return [step.run(Silent()) for _ in range(4)]
    finally:
        step.close()


if __name__ == "__main__":
    print(json.dumps(train(1, Path(sys.argv[1]))))
