"""Seconds of a rehearsal; its peaks are those of tests/oracles/peak_matrix.py."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.filterwarnings("ignore")

from tests.oracles.rehearsed import compared, job_of, rehearse  # noqa: E402


def test_a_stage_of_llama3_70b_on_32_gpus(benchmark: Any) -> None:
    """The bar: ten seconds on two cores."""
    job = job_of(
        "llama3_70b", 4, seq_length=4096, data_parallel_size=2, tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=5,
    )  # fmt: skip
    benchmark.pedantic(lambda: list(compared(job, "none", [0], rehearse)), rounds=2, iterations=1)
    assert benchmark.stats["mean"] < 10
