"""Inputs of Transformer Engine's CUDA graphs against Megatron Core's own helper on fake tensors: as
many as the order of the schedule asks for, and how large, to the byte."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from tests.advisor.jobs import parallel

from .megatron import graph_input_bytes
from .prediction import LLAMA3_8B, predicted_graph_inputs, tensor_parallel

CASES: list[dict[str, Any]] = [
    {"num_layers": 4, "num_microbatches": 3},
    {"num_layers": 4, "num_microbatches": 3, "micro_batch_size": 1, **tensor_parallel(4, True)},
    {"num_layers": 8, "num_microbatches": 8, "pipeline_model_parallel_size": 4},
    {"num_layers": 4, "num_microbatches": 2, "pipeline_model_parallel_size": 4},
    {"num_layers": 8, "num_microbatches": 8, **parallel(pp=2, vpp=2)},
    {"num_layers": 24, "num_microbatches": 8, **parallel(pp=4, vpp=3), **tensor_parallel(2, True)},
]


@pytest.mark.parametrize("changes", CASES)
def test_inputs_of_every_stage(changes: dict[str, Any]) -> None:
    case = LLAMA3_8B.changed(seq_length=2048, **changes)
    for stage in range(case.pipeline_model_parallel_size):
        assert predicted_graph_inputs(case, stage) == graph_input_bytes(case, stage)
