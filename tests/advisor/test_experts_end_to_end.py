"""Experts through layout, cost, memory, flags and search, with numbers done by hand."""

import re
import shlex
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.bridge import bridge_layout_overrides
from advisor.frameworks.megatron.flags import flags_of
from advisor.frameworks.megatron.options.table import sections
from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.raw import job_values
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import NONE, parse_setting
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout, check_model_fits_layout
from advisor.layers.operators import Collective, CollectiveKind, Group, Module
from advisor.models.layer_kind import DENSE, FeedForward, LayerKind
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import TokenDispatcher, TransformerImpl
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.flops import model_flops
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.layouts import layouts
from advisor.search.rank_shape import rank_shape
from advisor.time.communication import collective_seconds
from advisor.time.rank_links import all_to_all_link, link, network
from advisor.time.step_tail import parameter_groups
from tests.advisor.jobs import parallel
from tests.advisor.refusals import refused

H100 = load_gpu("H100")
CALIBRATION = load_calibration(H100)
MIXTRAL = load_model("mixtral_8x7b")
MOE = LayerKind(feed_forward=FeedForward.MOE)
LAYOUT = ParallelLayout(**parallel(tp=2, sp=True, pp=4, ep=4, etp=1, dp=4))


def job(layout: ParallelLayout = LAYOUT, **config: Any) -> Job:
    given = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=128, **config)
    return Job(model=MIXTRAL, layout=layout, config=given, gpu=H100, num_gpus=layout.world_size)


@pytest.mark.parametrize(
    ("ep", "etp", "expert_dp"), [(1, None, 4), (4, 1, 2), (8, 1, 1), (4, 2, 1), (2, None, 2)]
)
def test_expert_data_parallelism_takes_what_ep_and_etp_leave(ep, etp, expert_dp) -> None:
    layout = replace(LAYOUT, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    assert layout.expert_data_parallel_size == expert_dp
    assert layout.expert_optimizer_shards == (expert_dp if ep > 1 else 4)
    assert replace(layout, use_distributed_optimizer=False).expert_optimizer_shards == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_model_parallel_size": 3}, "must divide num_moe_experts = 8; nearest: 2 or 4"),
        ({"expert_tensor_parallel_size": 3}, "must divide moe_ffn_hidden_size = 14336"),
        ({"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 2}, "TP x CP x DP = 8"),
        ({"sequence_parallel": False}, "use --sp"),
    ],
)
def test_layouts_that_megatron_refuses(changes: dict[str, Any], words: str) -> None:
    with refused(words):
        check_model_fits_layout(MIXTRAL, replace(LAYOUT, **changes))


def test_dense_models_have_no_expert_parallelism_and_flex_needs_some() -> None:
    dense = load_model("llama3_8b")
    with pytest.raises(UserError, match="needs a model with experts"):
        check_model_fits_layout(dense, replace(LAYOUT, expert_tensor_parallel_size=None))
    flex = replace(MIXTRAL, moe_token_dispatcher_type=TokenDispatcher.FLEX)
    with pytest.raises(UserError, match="EP x ETP > 1"):
        check_model_fits_layout(flex, ParallelLayout())


def test_experts_are_a_group_of_parameters_of_their_own() -> None:
    """8 layers a stage; 2 of 8 experts a rank, whole, over 2 ranks; the rest over 4."""
    evaluator = Evaluator(job(), CALIBRATION)
    groups = parameter_groups(evaluator.shape, evaluator.stages[1], LAYOUT, H100, CALIBRATION)
    dense, experts = groups
    assert experts.elements == 8 * 2 * 3 * 4096 * 14336
    assert (dense.shards, dense.ranks, experts.shards, experts.ranks) == (4, 4, 2, 2)
    static = evaluator.stage_detail(NONE, 1).fixed.static
    assert static.optimizer == 3 * dense.elements + 6 * experts.elements
    assert static.gradients == 4 * (dense.elements + experts.elements)


def test_without_expert_parallelism_there_is_one_group() -> None:
    layout = replace(LAYOUT, expert_model_parallel_size=1, expert_tensor_parallel_size=None)
    evaluator = Evaluator(job(layout), CALIBRATION)
    (only,) = parameter_groups(evaluator.shape, evaluator.stages[1], layout, H100, CALIBRATION)
    assert (only.shards, only.ranks) == (4, 4)
    assert only.elements > 8 * 8 * 3 * 4096 * 14336 // 2


def test_the_shape_of_a_rank_knows_the_experts_degrees() -> None:
    shape = rank_shape(job(replace(LAYOUT, expert_tensor_parallel_size=None), moe_load_imbalance=2))
    assert (shape.expert_model_parallel_size, shape.expert_tensor_parallel_size) == (4, 2)
    assert shape.moe_load_imbalance == 2


def test_each_collective_has_its_ranks() -> None:
    layout = replace(LAYOUT, expert_tensor_parallel_size=2)
    net = network(layout, H100, CALIBRATION, MIXTRAL)
    seconds = [
        net.seconds(Collective(kind, group, 10**9))
        for kind, group in (
            (CollectiveKind.ALL_TO_ALL, Group.EXPERT),
            (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR),
            (CollectiveKind.ALL_GATHER, Group.EXPERT_TENSOR_AND_MODEL),
        )
    ]
    joined = (
        all_to_all_link(H100, CALIBRATION, 4, 2),
        *(link(H100, CALIBRATION, n, 1) for n in (2, 8)),
    )
    kinds = CollectiveKind.ALL_TO_ALL, *[CollectiveKind.ALL_GATHER] * 2
    assert seconds == [
        collective_seconds(kind, 10**9, ranks, each)
        for kind, ranks, each in zip(kinds, (4, 2, 8), joined, strict=True)
    ]
    one = network(ParallelLayout(), H100, CALIBRATION, MIXTRAL)
    assert one.seconds(Collective(CollectiveKind.ALL_TO_ALL, Group.EXPERT, 10**9)) == 0


def test_imbalance_costs_memory_and_time() -> None:
    even, busy = (
        Evaluator(job(moe_load_imbalance=x), CALIBRATION).evaluate(NONE) for x in (1.0, 1.5)
    )
    assert busy.peak.peak_allocated_bytes > even.peak.peak_allocated_bytes
    assert busy.time_seconds.total > even.time_seconds.total
    with pytest.raises(UserError, match="at least 1"):
        job(moe_load_imbalance=0.5)


def test_model_flops_count_topk_experts_and_shared_ones() -> None:
    model = replace(
        MIXTRAL,
        num_layers=2,
        moe_layer_freq=LayerPattern("[0,1]"),
        moe_shared_expert_intermediate_size=1024,
        ffn_hidden_size=8192,
    )
    attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
    mlps = 3 * 4096 * (8192 + 2 * 14336 + 1024)
    linear = 6 * 4096 * (2 * attention + mlps + 4096 * 32000)
    core = 6 * 4096 * 4096 * 4096 * 2
    assert model_flops(model, 4096, 1, 32000) == linear + core


@pytest.mark.parametrize(
    ("spec", "modules"),
    [
        ("selective:mlp", []),
        ("selective:moe", [Module.ROUTER]),
        ("selective:moe_act", [Module.EXPERT_ACTIVATION]),
        ("selective:layernorm", [Module.PRE_MLP_LAYERNORM]),
        ("selective:shared_experts", []),
        ("selective:moe,moe_act", [Module.ROUTER]),
    ],
)
def test_modules_that_act_on_a_moe_layer_under_transformer_engine(spec, modules) -> None:
    runs = selective_runs(parse_setting(spec), MIXTRAL, MOE)
    assert len(runs) == len(modules)
    assert all(module in run.modules for module, run in zip(modules, runs, strict=True))


def test_modules_by_layer_kind_and_implementation() -> None:
    assert not selective_runs(parse_setting("selective:moe,moe_act"), MIXTRAL, DENSE)
    assert selective_runs(parse_setting("selective:mlp"), MIXTRAL, DENSE)
    shared = replace(MIXTRAL, moe_shared_expert_intermediate_size=1024)
    assert selective_runs(parse_setting("selective:shared_experts"), shared, MOE)
    local = replace(MIXTRAL, transformer_impl=TransformerImpl.LOCAL, moe_grouped_gemm=False)
    assert not selective_runs(parse_setting("selective:moe_act"), local, MOE)
    assert len(selective_runs(parse_setting("selective:layernorm"), local, MOE)) == 2


def expert_flags(model: ModelSpec) -> list[str]:
    described, revision = replace(job(), model=model), resolve_revision(Framework.MEGATRON_LM)
    return list(flags_of(sections("Experts"), job_values(described, revision), described, revision))


def test_flags_say_what_differs_from_megatron() -> None:
    assert " ".join(expert_flags(MIXTRAL)) == (
        "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --num-experts 8 "
        "--moe-ffn-hidden-size 14336 --moe-aux-loss-coeff 0.01 "
        "--moe-token-dispatcher-type alltoall --moe-permute-fusion --moe-grouped-gemm"
    )
    pattern = replace(MIXTRAL, moe_layer_freq=LayerPattern("([0]*2+[1]*30)"))
    assert "([0]*2+[1]*30)" in expert_flags(pattern)


def test_overrides_of_bridge() -> None:
    text = bridge_layout_overrides(job(), resolve_revision(Framework.MEGATRON_BRIDGE))
    found = dict(part.split("=", 1) for part in shlex.split(text))
    assert found["model.expert_model_parallel_size"] == "4"
    assert found["model.moe_grouped_gemm"] == "true"
    assert found["model.moe_router_dtype"] == "null"


def test_a_dense_model_has_no_option_of_experts() -> None:
    layout = ParallelLayout(data_parallel_size=8)
    dense = replace(job(layout), model=load_model("llama3_8b"))
    for framework in (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE):
        text = parts_of(framework).spelling.layout_flags(dense)
        assert not {"expert", "moe"} & set(re.split(r"\W|_", text))


def test_a_search_tries_expert_parallelism() -> None:
    tried = list(layouts(resolve(Request(model="mixtral_8x7b", gpus="8xH200", search="layout"))))
    assert {layout.expert_model_parallel_size for layout in tried} == {1, 2, 4, 8}
    cut = {
        layout.expert_tensor_parallel_size
        for layout in tried
        if layout.expert_model_parallel_size > 1
    }
    assert cut == {1, 2, 4}
    fixed = advise(
        Request(model="mixtral_8x7b", gpus="8xH200", search="layout", expert_model_parallel_size=4)
    )
    assert {c.evaluation.job.layout.expert_model_parallel_size for c in fixed.candidates} == {4}


def test_depth_and_pattern_are_given_together() -> None:
    advice = advise(
        Request(
            model="mixtral_8x7b",
            gpus="8xH200",
            tensor_model_parallel_size=1,
            expert_model_parallel_size=8,
            overrides=("model.num_layers=4", "model.moe_layer_freq=([0]*1+[1]*3)"),
        )
    )
    assert advice.job.model.layer_kinds == (DENSE, MOE, MOE, MOE)
    assert any("9 of 10 runs" in text for text in advice.assumptions)
