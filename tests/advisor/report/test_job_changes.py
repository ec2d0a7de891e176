"""What tells the rows of a search apart: columns, KEY=VALUE, and the flags of a row's own job."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.layout import EVEN, DataParallelSharding
from advisor.models.options import CpCommType
from advisor.plan.split import split_evenly
from advisor.report.job_changes import LayoutColumns, apart
from advisor.request.origin import changes
from advisor.request.request import Request
from advisor.request.resolve import resolve
from tests.advisor.conftest import JOB
from tests.advisor.jobs import parallel


def job(**request: object) -> Job:
    found = resolve(Request(**request))
    assert found.layout is not None
    return found.job(found.layout)


def test_changes_are_paths_and_values() -> None:
    assert changes(JOB, JOB) == {}
    other = replace(
        JOB,
        layout=replace(JOB.layout, virtual_pipeline_model_parallel_size=10),
        config=replace(JOB.config, expandable_segments=True),
        model=replace(JOB.model, attention_dropout=0.1),
    )
    assert changes(other, JOB) == {
        "model.attention_dropout": 0.1,
        "layout.virtual_pipeline_model_parallel_size": 10,
        "job.expandable_segments": True,
    }
    assert apart(other, JOB) == ("VPP 10, model.attention_dropout=0.1 job.expandable_segments=true")


def test_degrees_that_no_row_uses_and_the_usual_sharding_have_no_column() -> None:
    base = job(model="llama3_8b", gpus="8xH100", framework="fsdp2")
    assert LayoutColumns([base], base).titles == ("DP", "mbs")
    gradients = replace(
        base, layout=replace(base.layout, data_parallel_sharding=DataParallelSharding.GRADIENTS)
    )
    columns = LayoutColumns([base, gradients], base)
    assert columns.titles == ("DP", "mbs", "sharding")
    assert [columns.cells(one) for one in (base, gradients)] == [
        ["8", "1", "full"],
        ["8", "1", "gradients"],
    ]
    assert columns.others(gradients) == {}


def test_the_kind_of_context_parallelism_stands_next_to_its_degree() -> None:
    layout = replace(JOB.layout, context_parallel_size=2, data_parallel_size=1)
    ring = replace(JOB, layout=layout)
    heads = replace(JOB, layout=replace(layout, cp_comm_type=CpCommType.A2A))
    one = replace(JOB, layout=replace(JOB.layout, cp_comm_type=CpCommType.A2A))
    columns = LayoutColumns([ring, heads, one], ring)
    assert columns.titles == ("TP", "CP", "PP", "VPP", "DP", "mbs")
    assert [columns.cells(each)[1] for each in (ring, heads, one)] == ["2", "2 a2a", "1"]


def test_experts_cut_by_tensor_parallelism_have_a_column() -> None:
    base = job(model="qwen3_30b_a3b", gpus="16xH100")
    whole = replace(base.layout, **parallel(tp=2, sp=True, dp=8))
    cut = replace(whole, expert_tensor_parallel_size=2, expert_model_parallel_size=8)
    layouts = (replace(whole, expert_tensor_parallel_size=1), cut)
    jobs = [replace(base, layout=layout) for layout in layouts]
    columns = LayoutColumns(jobs, jobs[0])
    assert columns.titles == ("TP", "EP", "ETP", "DP", "mbs")
    assert [columns.cells(one)[2] for one in jobs] == ["1", "2"]


def test_a_split_that_follows_from_the_degrees_is_not_reported() -> None:
    model = replace(JOB.model, num_layers=61)
    layouts = [
        split_evenly(model, replace(JOB.layout, **parallel(pp=pp, dp=32 // 4 // pp, vpp=1)))
        for pp in (4, 8)
    ]
    config = replace(JOB.config, global_batch_size=64)
    four, eight = (replace(JOB, model=model, layout=one, config=config) for one in layouts)
    assert apart(four, eight) == "PP 4"
    assert LayoutColumns([four, eight], eight).others(four) == {}
    own = replace(four.layout, **EVEN | {"pipeline_model_parallel_layout": "Et*16|t*15|t*15|t*15L"})
    mine = replace(four, layout=own)
    assert apart(mine, four) == "layout.pipeline_model_parallel_layout=Et*16|t*15|t*15|t*15L"
    assert apart(four, mine).startswith("layout.pipeline_model_parallel_layout=Et")


def test_an_overlap_that_has_nobody_to_talk_to_is_not_reported() -> None:
    wide = replace(JOB, layout=replace(JOB.layout, tp_comm_overlap=True))
    alone = replace(JOB.layout, tensor_model_parallel_size=1, sequence_parallel=False)
    one = replace(JOB, layout=replace(alone, data_parallel_size=4 * JOB.layout.data_parallel_size))
    assert apart(one, wide) == "TP 1"
    assert apart(wide, one) == "TP 4+SP, layout.tp_comm_overlap=true"


SWITCHES = [
    *(
        (framework, "qwen3_30b_a3b", "16xH100", change)
        for framework in ("megatron_lm", "megatron_bridge", "nemo")
        for change in (
            *("job.expandable_segments", "job.cuda_graph_impl"),
            *("layout.overlap_moe_expert_parallel_comm", "job.optimizer_cpu_offload"),
            *("model.cross_entropy_fusion", "layout.expert_tensor_parallel_size"),
        )
    ),
    *(
        (framework, "llama3_8b", "8xH100", "layout.data_parallel_sharding")
        for framework in ("fsdp2", "deepspeed", "torchtitan", "huggingface")
    ),
    ("deepspeed", "llama3_8b", "8xH100", "job.param_cpu_offload"),
    ("torchtitan", "llama3_8b", "8xH100", "job.expandable_segments"),
    ("huggingface", "llama3_8b", "8xH100", "job.use_liger_kernel"),
]
VALUES = {
    "job.cuda_graph_impl": ("none", "transformer_engine"),
    "model.cross_entropy_fusion": ("none", "te"),
    "layout.expert_tensor_parallel_size": ("1", "2"),
    "layout.data_parallel_sharding": ("full", "gradients"),
}
BESIDE = {
    "layout.expert_tensor_parallel_size": (
        "layout.tensor_model_parallel_size=2",
        "layout.expert_model_parallel_size=4",
    ),
    "job.optimizer_cpu_offload": ("job.use_precision_aware_optimizer=true",),
}
"""What the values need."""


@pytest.mark.parametrize(("framework", "model", "gpus", "key"), SWITCHES)
def test_what_a_row_prints_says_what_its_job_changes(framework, model, gpus, key) -> None:
    """Flags, variables, or the line that says what the flags leave to a recipe."""
    stack = parts_of(framework)

    def printed(value: str) -> tuple[object, ...]:
        given = (f"{key}={value}", *BESIDE.get(key, ()))
        one = job(model=model, gpus=gpus, framework=framework, overrides=given)
        return (
            stack.spelling.layout_flags(one),
            stack.spelling.setting_flags(stack.settings.none, one),
            stack.spelling.environment(stack.settings.none, one),
            stack.spelling.omitted(one),
        )

    first, second = VALUES.get(key, ("true", "false"))
    assert printed(first) != printed(second)
