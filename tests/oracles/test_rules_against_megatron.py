"""Our rules against the installed TransformerConfig of megatron-core 0.16.1, setting by setting.

Transformer Engine is reported as present, as the rules assume; nothing else is replaced.
"""

import inspect
import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules import RULES, Authority, Verdict, first_refusal
from advisor.frameworks.megatron.rules.sources import source_of
from advisor.job import Framework

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.16")
BASE: dict[str, Any] = {"num_layers": 8, "num_attention_heads": 8, "num_query_groups": 8}
MOE: dict[str, Any] = {"num_moe_experts": 8, "moe_grouped_gemm": True}


@pytest.fixture(autouse=True)
def transformer_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.transformer import transformer_config

    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)


def real_outcome(raw: RawSettings) -> str:
    """``ok``, or the exception and its message, of constructing the real configuration."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {field.name for field in fields(TransformerConfig)}
    values = {f.name: getattr(raw, f.name) for f in fields(RawSettings)}
    for name in ("recompute_modules", "offload_modules", "cuda_graph_modules"):
        values[name] = None if values[name] is None else list(values[name])
    values["cuda_graph_scope"] = values.pop("cuda_graph_modules")
    # TransformerConfig takes the enum or the default; the backend has no rule with recompute.
    del values["attention_backend"]
    values["add_bias_linear"] = bool(values["add_bias_linear"])
    values = {name: value for name, value in values.items() if name in known}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TransformerConfig(
                hidden_size=64, bf16=True, params_dtype=torch.bfloat16,
                pipeline_dtype=torch.bfloat16,
                moe_token_dispatcher_type="alltoall", **values,
            )  # fmt: skip
    except (ValueError, AssertionError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def claimed_outcome(raw: RawSettings) -> str:
    refusal = first_refusal(raw, REVISION)
    return "ok" if refusal is None else refusal.raises


def assert_same(raw: RawSettings) -> None:
    real, claimed = real_outcome(raw), claimed_outcome(raw)
    assert real.startswith(claimed), f"{raw}\n  real    {real}\n  claimed {claimed}"


def sel(*modules: str, **more: Any) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": modules, **more}


def full(method: str = "uniform", number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "recompute_granularity": "full", "recompute_method": method,
        "recompute_num_layers": number, **more,
    }  # fmt: skip


def fp8(recipe: str, **more: Any) -> dict[str, Any]:
    return {"fp8": "hybrid", "fp8_recipe": recipe, **more}


def off(*modules: str, **more: Any) -> dict[str, Any]:
    return {"fine_grained_activation_offloading": True, "offload_modules": modules, **more}


def graph(impl: str, *modules: str, **more: Any) -> dict[str, Any]:
    return {"cuda_graph_impl": impl, "cuda_graph_modules": modules, **more}


DRY: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
TE = "transformer_engine"
CASES: tuple[dict[str, Any], ...] = (
    {},
    {"recompute_granularity": "foo"},
    {"recompute_granularity": "none"},
    {"recompute_granularity": "Full"},
    {"recompute_granularity": "full"},
    {"recompute_granularity": "full", "recompute_method": "uniform"},
    {"recompute_granularity": "full", "recompute_num_layers": 1},
    full("foo"),
    full("uniform", 0),
    full("uniform", -1),
    full("uniform", 3),
    full("uniform", 99),
    full("block", 0),
    full("block", 8),
    full("block", 99),
    full(recompute_modules=("mlp",)),
    full(recompute_modules=("bogus",)),
    {"recompute_method": "uniform", "recompute_num_layers": 2},
    {"recompute_method": "foo"},
    {"recompute_modules": ("mlp",)},
    {"recompute_modules": ("bogus",)},
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "selective", "recompute_method": "uniform"},
    {"recompute_granularity": "selective", "recompute_method": "foo"},
    {"recompute_granularity": "selective", "recompute_num_layers": 2},
    {"recompute_granularity": "selective", "recompute_num_layers": 0},
    sel(),
    sel("core_attn"),
    sel("mlp"),
    sel("layernorm"),
    sel("core_attn", "mlp", "layernorm"),
    sel("moe"),
    sel("shared_experts"),
    sel("moe_act"),
    sel("moe_act", **MOE),
    sel("moe_act", num_moe_experts=8),
    sel("mla_up_proj"),
    sel("gdn_norm_out"),
    sel("mhc"),
    sel("core_attn,mlp"),
    sel("mlp", "bogus"),
    sel("shared_experts", moe_shared_expert_overlap=True),
    sel("shared_experts", moe_shared_expert_overlap=True, moe_shared_expert_intermediate_size=64),
    {"moe_layer_recompute": True, **MOE},
    full(moe_layer_recompute=True),
    full(distribute_saved_activations=True, tensor_model_parallel_size=2),
    full(
        distribute_saved_activations=True, tensor_model_parallel_size=2, sequence_parallel=True
    ),
    sel("mlp", distribute_saved_activations=True, tensor_model_parallel_size=2,
        sequence_parallel=True),
    sel("mlp", distribute_saved_activations=True, tensor_model_parallel_size=2),
    {"distribute_saved_activations": True, "tensor_model_parallel_size": 2,
     "sequence_parallel": True},
    {"sequence_parallel": True},
    {"tensor_model_parallel_size": 3},
    {"tensor_model_parallel_size": 4, "num_query_groups": 2},
    {"tensor_model_parallel_size": 4, "num_query_groups": 3, "num_attention_heads": 12},
    {"pipeline_model_parallel_size": 2},
    {"cpu_offloading": True, "cpu_offloading_num_layers": 8},
    {"cpu_offloading": True, "cpu_offloading_num_layers": -1},
    {"cpu_offloading": True, "cpu_offloading_num_layers": 7},
    {"cpu_offloading": True, "cpu_offloading_num_layers": 2, "pipeline_model_parallel_size": 2},
    sel("mlp", cpu_offloading=True, cpu_offloading_num_layers=2),
    full(cpu_offloading=True, cpu_offloading_num_layers=2),
    fp8("delayed"),
    fp8("delayed", first_last_layers_bf16=True),
    fp8("tensorwise", first_last_layers_bf16=True),
    fp8("tensorwise", first_last_layers_bf16=True, num_layers_at_start_in_bf16=9),
    fp8("tensorwise", first_last_layers_bf16=True, num_layers_at_end_in_bf16=5,
        pipeline_model_parallel_size=2),
    fp8("custom"),
    fp8("custom", fp8_quantizer_factory="a.b.c"),
    {"fp8_param": True},
    fp8("delayed", fp8_param=True),
    fp8("delayed", fp4="e2m1"),
    sel("layernorm", **fp8("delayed")),
    sel("moe_act", **fp8("delayed"), **MOE),
    sel("layernorm", **fp8("tensorwise")),
    sel("layernorm", **fp8("blockwise")),
    sel("layernorm", **fp8("mxfp8")),
    sel("core_attn", "mlp", **fp8("delayed")),
    full(**fp8("delayed")),
    {"recompute_modules": ("layernorm",), **fp8("delayed")},
    off(),
    off("core_attn"),
    off("attn_proj"),
    off("core_attn", "attn_proj"),
    off("mlp"),
    off("fused_group_mlp"),
    off("core_attn", **full()),
    off("core_attn", **sel("core_attn")),
    off("moe_act", **sel("moe"), **MOE),
    off("core_attn", cpu_offloading=True, cpu_offloading_num_layers=2),
    {"offload_modules": ("bogus",)},
    graph("foo"),
    graph("full_iteration"),
    graph("local"),
    graph("local", "full"),
    graph("local", "attn", "full"),
    graph("local", "bogus"),
    graph("none", "bogus"),
    graph("none", "attn"),
    graph(TE, "attn", "mlp"),
    graph(TE, "moe"),
    graph(TE, "moe_router"),
    graph(TE, "moe", "moe_router", **MOE),
    graph(TE, "moe_preprocess", **MOE),
    graph("local", "moe_preprocess", **MOE),
    graph("local", "moe_preprocess"),
    graph(TE, "full_iteration"),
    graph("local", "full_iteration", **full()),
    graph("local", "full_iteration", **sel("core_attn")),
    graph("local", cpu_offloading=True, cpu_offloading_num_layers=2),
    graph("local", enable_cuda_graph=True),
    {"enable_cuda_graph": True, "external_cuda_graph": True},
    {"enable_cuda_graph": True, **full()},
    {"external_cuda_graph": True, **full()},
    graph("local", **full()),
    graph(TE, "attn", **full()),
    graph(TE, **sel("core_attn"), **DRY),
    graph(TE, **sel("core_attn"), hidden_dropout=0.0),
    graph(TE, "attn", **sel("core_attn"), hidden_dropout=0.0),
    graph(TE, "mlp", **sel("core_attn"), hidden_dropout=0.0),
    graph(TE, "mlp", **sel("mlp"), attention_dropout=0.0),
    graph(TE, "attn", **sel("mlp"), attention_dropout=0.0),
    graph(TE, "moe_router", **sel("moe"), **DRY, **MOE),
    graph(TE, **sel("moe"), attention_dropout=0.0, **MOE),
    graph(TE, recompute_granularity="selective"),
)  # fmt: skip


@pytest.mark.parametrize("given", CASES, ids=str)
def test_the_installed_configuration_agrees(given: dict[str, Any]) -> None:
    assert_same(RawSettings(**{**BASE, **given}))


def test_there_are_enough_cases_and_both_kinds() -> None:
    claims = [claimed_outcome(RawSettings(**{**BASE, **given})) for given in CASES]
    assert len(claims) >= 80
    assert claims.count("ok") >= 30
    assert len({claim for claim in claims if claim != "ok"}) >= 35


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


def _config_rules() -> list[str]:
    here = [r for r in RULES if r.authority is Authority.CONFIG and r.verdict is Verdict.REFUSED]
    return [
        r.id for r in here if re.search(r"transformer_config.py:\d+$", source_of(r.id, REVISION))
    ]


@pytest.mark.parametrize("rule_id", _config_rules())
def test_the_cited_line_is_where_the_installed_source_raises(rule_id: str) -> None:
    """Within ten lines of the citation stands a raise or an assert with the claimed words."""
    from megatron.core.transformer import transformer_config

    claims = {
        refusal.raises
        for given in CASES
        if (refusal := first_refusal(RawSettings(**{**BASE, **given}), REVISION))
        and refusal.rule == rule_id
    }
    assert claims, f"no case fires {rule_id}"
    source = inspect.getsource(transformer_config).splitlines()
    line = int(source_of(rule_id, REVISION).rpartition(":")[2])
    nearby = " ".join(source[line - 1 : line + 11])
    assert "raise" in nearby or "assert" in nearby or "CudaGraphScope[scope]" in nearby
    words = set(re.findall(r"[A-Za-z_]{4,}", nearby))
    claimed = set(re.findall(r"[A-Za-z_]{4,}", min(claims).partition(": ")[2]))
    assert not claimed or claimed & words, (claimed, nearby)
