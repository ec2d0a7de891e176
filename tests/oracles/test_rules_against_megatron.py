"""Our rules against the installed TransformerConfig of megatron-core 0.16.1, setting by setting."""

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.base.rule import Verdict
from advisor.diagnose.scan import scan
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.rules.engine import RULES
from advisor.frameworks.megatron.rules.stated import Authority
from tests.advisor.frameworks.megatron.configuration_cases import BASE, CASES, TE, claims
from tests.advisor.jobs import parallel
from tests.oracles.megatron.configuration import (
    REVISION,
    assert_same,
    first_refusal,
    real_outcome,
    report_transformer_engine,
)

pytest.importorskip("megatron.core")


@pytest.fixture(autouse=True)
def transformer_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    report_transformer_engine(monkeypatch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_installed_configuration_agrees(case: dict[str, Any]) -> None:
    assert_same(RawSettings(**{**BASE, **case}))


def test_what_the_installed_configuration_raises_is_diagnosed_as_its_rule() -> None:
    """Where it raises in words of its own."""
    raised = 0
    for case in CASES:
        raw = RawSettings(**{**BASE, **case})
        refusal, text = first_refusal(raw, REVISION), real_outcome(raw)
        if refusal is not None and not text.startswith(("KeyError", "TypeError: no such")):
            found = scan(text).findings
            assert [f"megatron.{refusal.rule}" in one.failure.rules for one in found] == (
                [True] if text.partition(": ")[2] else []
            )
            raised += bool(found)
    assert raised >= 100


def test_there_are_enough_cases_and_both_kinds() -> None:
    found = [first_refusal(RawSettings(**{**BASE, **case}), REVISION) for case in CASES]
    assert len(found) >= 200
    assert found.count(None) >= 75
    assert len({claims(one) for one in found if one}) >= 60


def _grid(**axes: tuple[Any, ...]) -> Iterator[RawSettings]:
    for values in itertools.product(*axes.values()):
        yield RawSettings(**{**BASE, **dict(zip(axes, values, strict=True))})


def test_every_combination_of_the_recompute_fields_agrees() -> None:
    """When several rules are broken at once the real configuration raises the first; so do we."""
    for raw in _grid(
        recompute_granularity=(None, "full", "selective", "foo"),
        recompute_method=(None, "uniform", "block", "foo"),
        recompute_num_layers=(None, 0, 1, 99),
        recompute_modules=(None, (), ("mlp",), ("layernorm", "moe"), ("moe_act", "bogus")),
        distribute_saved_activations=(False, True),
        sequence_parallel=(False, True),
        tensor_model_parallel_size=(2,),
    ):
        assert_same(raw)


def test_every_combination_of_precision_and_modules_agrees() -> None:
    for raw in _grid(
        recompute_granularity=(None, "full", "selective"),
        recompute_method=(None, "uniform"),
        recompute_modules=(None, (), ("layernorm",), ("core_attn", "mlp")),
        fp8=(None, "hybrid"),
        fp8_recipe=("delayed", "tensorwise", "mxfp8"),
        fp8_param=(False, True),
        first_last_layers_bf16=(False, True),
        cpu_offloading=(False, True),
    ):
        assert_same(raw)


def test_every_combination_of_graphs_and_recompute_agrees() -> None:
    for raw in _grid(
        cuda_graph_impl=("none", "local", TE, "full_iteration"),
        cuda_graph_modules=((), ("attn",), ("mlp", "attn"), ("moe",), ("full_iteration",)),
        recompute_granularity=("full", "selective"),
        recompute_method=("block",),
        recompute_num_layers=(None, 1),
        recompute_modules=(None, ("mlp",), ("core_attn", "layernorm"), ("moe",)),
        attention_dropout=(0.0, 0.1),
        hidden_dropout=(0.0, 0.1),
    ):
        assert_same(raw)


def test_every_combination_of_experts_and_dispatchers_agrees() -> None:
    for raw in _grid(
        num_moe_experts=(None, 8),
        **parallel(ep=(1, 2), tp=(1, 2), etp=(None, 1)),
        moe_token_dispatcher_type=("allgather", "alltoall", "flex"),
        moe_shared_expert_intermediate_size=(None, 64),
        moe_shared_expert_overlap=(False, True),
        moe_grouped_gemm=(False, True),
        recompute_granularity=(None, "selective"),
        recompute_modules=(None, ("moe_act",), ("shared_experts", "layernorm"), ("moe",)),
        add_bias_linear=(False, True),
    ):
        assert_same(raw)


def test_every_combination_of_expert_overlap_and_recompute_agrees() -> None:
    for raw in _grid(
        num_moe_experts=(8,),
        moe_grouped_gemm=(True,),
        **parallel(ep=(1, 4), pp=(1, 2), vpp=(None, 2)),
        overlap_moe_expert_parallel_comm=(False, True),
        delay_wgrad_compute=(False, True),
        mtp_num_layers=(None, 1, 2),
        recompute_granularity=(None, "full", "selective"),
        recompute_method=(None, "uniform"),
        recompute_num_layers=(None, 1),
        recompute_modules=(None, ("moe", "moe_act")),
        cuda_graph_impl=("none", TE),
        cuda_graph_modules=((), ("attn",)),
    ):
        assert_same(raw)


_NAMES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "shared_experts", "mla_up_proj")
_OFFLOADS = ("core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "qkv_linear", "mlp")
_GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "full_iteration")
_LABELS = st.lists(st.sampled_from(_NAMES), unique=True, max_size=4).map(tuple)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "recompute_granularity": st.sampled_from([None, "full", "selective", "selective"]),
    "recompute_method": st.sampled_from([None, None, "uniform", "block"]),
    "recompute_num_layers": st.sampled_from([None, None, 1, 4]),
    "recompute_modules": st.none() | _LABELS,
    "distribute_saved_activations": st.booleans(),
    "moe_layer_recompute": st.sampled_from([False, False, False, True]),
    "fine_grained_activation_offloading": st.booleans(),
    "offload_modules": st.lists(st.sampled_from(_OFFLOADS), unique=True, max_size=3).map(tuple),
    "cpu_offloading": st.sampled_from([False, False, False, True]),
    "cpu_offloading_num_layers": st.sampled_from([0, 2, 8]),
    "cuda_graph_impl": st.sampled_from(["none", "none", "local", TE]),
    "cuda_graph_modules": st.lists(st.sampled_from(_GRAPHED), unique=True, max_size=2).map(tuple),
    "fp8": st.sampled_from([None, "hybrid"]),
    "fp8_recipe": st.sampled_from([None, "delayed", "tensorwise", "blockwise", "mxfp8"]),
    "hidden_dropout": st.sampled_from([0.0, 0.1]),
    "attention_dropout": st.sampled_from([0.0, 0.1]),
    "tensor_model_parallel_size": st.sampled_from([1, 2, 4]),
    "sequence_parallel": st.booleans(),
    "pipeline_model_parallel_size": st.sampled_from([1, 2]),
    "virtual_pipeline_model_parallel_size": st.sampled_from([None, 2]),
    "context_parallel_size": st.sampled_from([1, 2]),
    "expert_model_parallel_size": st.sampled_from([1, 2]),
    "expert_tensor_parallel_size": st.sampled_from([None, 1, 2]),
    "overlap_moe_expert_parallel_comm": st.booleans(),
    "mtp_num_layers": st.sampled_from([None, 1, 2]),
    "multi_latent_attention": st.booleans(),
    "num_moe_experts": st.sampled_from([None, 8]),
    "moe_layer_freq": st.sampled_from(["1", "2", "[0, 1, 1, 1, 1, 1, 1, 1]"]),
    "moe_grouped_gemm": st.booleans(),
    "moe_shared_expert_intermediate_size": st.sampled_from([None, 64]),
    "moe_shared_expert_overlap": st.booleans(),
    "moe_token_dispatcher_type": st.sampled_from(["allgather", "alltoall", "flex"]),
    "moe_expert_capacity_factor": st.sampled_from([None, None, 1.0]),
    "moe_pad_expert_input_to_capacity": st.booleans(),
    "moe_input_jitter_eps": st.sampled_from([None, 0.1]),
}
_SETTINGS = st.lists(st.sampled_from(sorted(_VALUES)), unique=True, max_size=14).flatmap(
    lambda names: st.fixed_dictionaries({name: _VALUES[name] for name in names})
)


@settings(
    max_examples=1500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(values=_SETTINGS)
def test_random_settings_agree(values: dict[str, Any]) -> None:
    assert_same(RawSettings(**{**BASE, **values}))


def _config_rules() -> list[str]:
    return [
        name
        for name, rule in RULES.items()
        if rule.authority is Authority.CONFIG
        and rule.verdict is Verdict.REFUSED
        and re.search(r"transformer_config.py:\d+$", rule.cited(REVISION))
    ]


@pytest.mark.parametrize("rule_id", _config_rules())
def test_the_cited_line_is_where_the_installed_source_raises(rule_id: str) -> None:
    """Within ten lines of the citation stands a raise or an assert with the claimed words."""
    from megatron.core.transformer import transformer_config

    claimed_by = {
        claim
        for case in CASES
        if (refusal := first_refusal(RawSettings(**{**BASE, **case}), REVISION))
        and refusal.rule == rule_id
        for claim in claims(refusal)
    }
    assert claimed_by, f"no case fires {rule_id}"
    source = inspect.getsource(transformer_config).splitlines()
    line = int(RULES[rule_id].cited(REVISION).rpartition(":")[2])
    nearby = " ".join(source[line - 1 : line + 11])
    assert "raise" in nearby or "assert" in nearby or "CudaGraphScope[scope]" in nearby
    words = set(re.findall(r"[A-Za-z_]{4,}", nearby))
    claimed = set(re.findall(r"[A-Za-z_]{4,}", min(claimed_by).partition(": ")[2]))
    assert not claimed or claimed & words, (claimed, nearby)
