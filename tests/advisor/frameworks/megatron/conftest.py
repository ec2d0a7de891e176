"""Jobs for the rules: a small dense model in any layout, with any precision and CUDA graphs."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.job.job import CudaGraphImpl, Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.options import AttentionBackend, TransformerImpl
from advisor.models.spec import ModelSpec
from tests.advisor.jobs import job_of
from tests.advisor.toys import H100, toy_model

MODEL = toy_model(24, 64, 256, 8, 8, vocab_size=512, max_position_embeddings=4096)
LAYOUT = ParallelLayout()
CONFIG = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=32)
_FIELDS = {
    "model": frozenset(ModelSpec.__struct_fields__),
    "layout": frozenset(ParallelLayout.__struct_fields__),
    "config": frozenset(JobConfig.__struct_fields__),
}

_ENUMS = {
    "transformer_impl": TransformerImpl,
    "attention_backend": AttentionBackend,
    "precision": Precision,
    "cuda_graph_impl": CudaGraphImpl,
    "main_grads_dtype": DType,
}

MakeJob = Callable[..., Job]


def build_job(**overrides: Any) -> Job:
    """A job of 24 layers on one GPU; each override goes to the part that has the field."""
    for name, enum in _ENUMS.items():
        if name in overrides:
            overrides[name] = enum(overrides[name])
    parts = {
        part: {name: overrides.pop(name) for name in tuple(overrides) if name in names}
        for part, names in _FIELDS.items()
    }
    assert not overrides, f"no such field: {overrides}"
    layout = replace(LAYOUT, **parts["layout"])
    config = replace(CONFIG, **parts["config"])
    block_scaled = config.precision is Precision.MXFP8
    gpu = replace(H100, compute_capability=10.0) if block_scaled else H100
    return job_of(replace(MODEL, **parts["model"]), layout, config, gpu)


@pytest.fixture
def make_job() -> MakeJob:
    return build_job
