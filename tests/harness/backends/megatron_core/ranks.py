"""One of two ranks under torchrun: prints its losses under each layout."""

import sys

import torch.distributed as dist

from advisor.layout import ParallelLayout
from harness.backends.megatron_core import build
from harness.result import Phase
from tests.harness.backends.megatron_core.workloads import LLAMA, MOE, workload

PIPELINE = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
LAYOUTS = {
    "tp": (LLAMA, ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=True)),
    "pp": (LLAMA, ParallelLayout(**PIPELINE)),
    "dp": (LLAMA, ParallelLayout(data_parallel_size=2)),
    "ep": (MOE, ParallelLayout(data_parallel_size=2, expert_model_parallel_size=2)),
}


class Silent:
    def phase(self, phase: Phase) -> None: ...


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for name, (model, layout) in LAYOUTS.items():
        step = build(workload(model, layout=layout), 1234)
        found = [step.run(Silent()) for _ in range(4)]
        step.close()
        # one write: the ranks share a pipe
        sys.stdout.write(f"{name} {' '.join(str(loss) for loss in found)}\n")
        sys.stdout.flush()
    dist.destroy_process_group()
