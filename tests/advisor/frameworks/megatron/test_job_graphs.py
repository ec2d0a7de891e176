"""Which of a recipe's CUDA graphs a release captures."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.job_graphs import as_captured
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import NONE
from advisor.frameworks.names import Framework
from advisor.job.job import CudaGraphImpl, JobConfig
from advisor.models.options import FlexBackend, TokenDispatcher
from advisor.models.presets import load_model
from research.rows import all_targets

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.19")
EXPERTS = load_model("qwen3_30b_a3b")
CONFIG = JobConfig(seq_length=4096, micro_batch_size=2, global_batch_size=32)


@pytest.mark.parametrize(
    ("impl", "modules", "given", "captured"),
    [
        ("local", (), (), ("none", ())),  # a recipe's, of whole layers
        ("local", (), ("job.cuda_graph_impl",), ("local", ())),
        ("local", ("full_iteration",), (), ("none", ())),  # the dispatcher waits for the host
        ("local", ("full_iteration",), ("job.cuda_graph_impl",), ("full_iteration", ())),
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


def test_a_graph_of_the_whole_iteration_stays_over_hybridep() -> None:
    experts = replace(
        EXPERTS,
        moe_token_dispatcher_type=TokenDispatcher.FLEX,
        moe_flex_dispatcher_backend=FlexBackend.HYBRIDEP,
    )
    config = replace(CONFIG, cuda_graph_impl=CudaGraphImpl.FULL_ITERATION)
    found = as_captured(experts, config, frozenset(), REVISION)
    assert found.cuda_graph_impl is CudaGraphImpl.FULL_ITERATION


def test_every_published_time_keeps_its_graphs() -> None:
    """The rules refuse none of the graphs that were measured."""
    for target in all_targets():
        job = target.job
        if job.config.cuda_graph_impl is not CudaGraphImpl.NONE and job.model.num_moe_experts:
            framework = Framework(job.config.framework)
            revision = resolve_revision(framework, job.config.framework_version)
            refused = {one.rule for one in check(NONE, job, revision)}
            assert "cuda_graph_iteration_experts" not in refused, target.name
