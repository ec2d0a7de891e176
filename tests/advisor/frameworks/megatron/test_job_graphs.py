"""Which of a recipe's CUDA graphs a release captures."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.job_graphs import as_captured
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.job.job import CudaGraphImpl, JobConfig
from advisor.models.presets import load_model

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.19")
EXPERTS = load_model("qwen3_30b_a3b")
CONFIG = JobConfig(seq_length=4096, micro_batch_size=2, global_batch_size=32)


@pytest.mark.parametrize(
    ("impl", "modules", "given", "captured"),
    [
        ("local", (), (), ("none", ())),  # a recipe's, of whole layers
        ("local", (), ("job.cuda_graph_impl",), ("local", ())),
        ("local", ("full_iteration",), (), ("full_iteration", ())),
        ("transformer_engine", ("attn",), (), ("transformer_engine", ("attn",))),
        ("none", ("attn",), (), ("none", ())),
        ("full_iteration", ("attn",), ("job.cuda_graph_impl",), ("full_iteration", ())),
        ("none", ("attn",), ("job.cuda_graph_modules",), ("none", ("attn",))),
    ],
)
def test_what_a_release_captures_of_a_recipe(impl, modules, given, captured) -> None:
    config = replace(CONFIG, cuda_graph_impl=CudaGraphImpl(impl), cuda_graph_modules=modules)
    found = as_captured(EXPERTS, config, frozenset(given), REVISION)
    assert (found.cuda_graph_impl, found.cuda_graph_modules) == captured
