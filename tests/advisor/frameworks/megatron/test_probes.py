"""Our verdict against what the real TransformerConfig of ten releases did with each setting.

The table's header names its source. The message that a rule claims must be how the real one starts.
"""

import csv
from pathlib import Path
from typing import Any

import pytest

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules import first_refusal
from advisor.frameworks.names import Framework

TABLE = Path(__file__).parent / "data" / "transformer_config_probes.csv"
VERSIONS = (
    "0.11.0",
    "0.12.3",
    "0.13.1",
    "0.14.0",
    "0.15.3",
    "0.16.1",
    "0.17.1",
    "0.18.2",
    "0.19.2",
    "main",
)
BASE: dict[str, Any] = {"num_layers": 8, "num_attention_heads": 8, "num_query_groups": 8}
MOE: dict[str, Any] = {"num_moe_experts": 8, "moe_grouped_gemm": True}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def full(**more: Any) -> dict[str, Any]:
    values = {"recompute_method": "uniform", "recompute_num_layers": 1, **more}
    return {"recompute_granularity": "full", **{k: v for k, v in values.items() if v != "unset"}}


def sel(*modules: str, **more: Any) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": modules, **more}


def unset(**more: Any) -> dict[str, Any]:
    return {"recompute_granularity": "selective", **more}


def off(*modules: str, **more: Any) -> dict[str, Any]:
    return {"fine_grained_activation_offloading": True, "offload_modules": modules, **more}


def cpu(layers: int, **more: Any) -> dict[str, Any]:
    return {"cpu_offloading": True, "cpu_offloading_num_layers": layers, **more}


def fp8(recipe: str, **more: Any) -> dict[str, Any]:
    return {"fp8": "hybrid", "fp8_recipe": recipe, **more}


def overlap(**more: Any) -> dict[str, Any]:
    return {
        "overlap_moe_expert_parallel_comm": True,
        "expert_model_parallel_size": 2,
        "moe_token_dispatcher_type": "alltoall",
        **MOE,
        **more,
    }


def graph(impl: str, *modules: str, **more: Any) -> dict[str, Any]:
    return {"cuda_graph_impl": impl, "cuda_graph_modules": modules, **more}


def _graph_probes(impl: str) -> dict[str, dict[str, Any]]:
    name = f"cg_{impl}"
    mla = {"multi_latent_attention": True}
    return {
        f"{name}_none": graph(impl),
        f"{name}_full": graph(impl, **full()),
        f"{name}_sel_core_attn": graph(impl, **sel("core_attn"), **NO_DROPOUT),
        f"{name}_sel_layernorm": graph(impl, **sel("layernorm"), **NO_DROPOUT),
        f"{name}_sel_mlp": graph(impl, **sel("mlp"), **NO_DROPOUT),
        f"{name}_sel_mla_up_proj": graph(impl, **sel("mla_up_proj"), **NO_DROPOUT, **mla),
        f"{name}_core_attn_dropout": graph(impl, **sel("core_attn"), hidden_dropout=0.0),
        f"{name}_mlp_dropout": graph(impl, **sel("mlp"), attention_dropout=0.0),
        f"{name}_cpuoff": graph(impl, **cpu(2)),
    }


LABELS = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
    "bogus",
)
OFFLOADS = (
    "core_attn",
    "attn_proj",
    "expert_fc1",
    "moe_act",
    "attn_norm",
    "mlp_norm",
    "qkv_linear",
    "fused_group_mlp",
    "gdp_qkv",
    "dense_mlp",
    "mla_up_proj",
)
TE = "transformer_engine"
SETTINGS: dict[str, dict[str, Any]] = {
    "gran_bad": {"recompute_granularity": "partial"},
    "method_bad": full(recompute_method="foo"),
    "full_no_method": full(recompute_method="unset"),
    "full_no_num": full(recompute_num_layers="unset"),
    "sel_num": unset(recompute_num_layers=1),
    "sel_method": unset(recompute_method="block"),
    "full_num_too_big": full(recompute_method="block", recompute_num_layers=99),
    "full_num_zero": full(recompute_method="block", recompute_num_layers=0),
    "sel_unset": unset(),
    "sel_empty": sel(),
    "none_unset": {},
    "dsa_sp": full(
        distribute_saved_activations=True, sequence_parallel=True, tensor_model_parallel_size=2
    ),
    **{f"mod_{label}": sel(label) for label in LABELS},
    "mod_moe_act": sel("moe_act", **MOE),
    "moe_act_no_gg": sel("moe_act", num_moe_experts=8),
    "shared_overlap": sel(
        "shared_experts",
        moe_shared_expert_overlap=True,
        moe_shared_expert_intermediate_size=64,
        moe_token_dispatcher_type="alltoall",
    ),
    **{
        f"fp8_{r}_layernorm": sel("layernorm", **fp8(r))
        for r in ("delayed", "tensorwise", "blockwise", "mxfp8")
    },
    "fp8_delayed_coreattn": sel("core_attn", **fp8("delayed")),
    "fp8_delayed_mlp": sel("mlp", **fp8("delayed")),
    "fp8_delayed_full": full(**fp8("delayed")),
    "moe_layer_recompute_full": full(moe_layer_recompute=True, **MOE),
    "moe_layer_recompute": {"moe_layer_recompute": True, **MOE},
    "cpuoff_L": cpu(8),
    "cpuoff_pp": cpu(2, pipeline_model_parallel_size=2),
    "cpuoff_recompute": cpu(2, **unset()),
    "cpuoff_ok": cpu(2),
    **{f"off_{module}": off(module) for module in OFFLOADS},
    "off_attn_proj_core": off("core_attn", "attn_proj"),
    "off_none": off(),
    "off_cpuoff": off("core_attn", **cpu(2)),
    "off_moe_recompute": off("moe_act", **sel("moe"), **MOE),
    "off_same_module": off("core_attn", **sel("core_attn")),
    "off_full": off("core_attn", **full()),
    "cg_enable_sel": {"enable_cuda_graph": True, **unset()},
    "cg_enable_full": {"enable_cuda_graph": True, **full()},
    "cg_ext_sel": {"external_cuda_graph": True, **unset()},
    "cg_ext_full": {"external_cuda_graph": True, **full()},
    **_graph_probes("local"),
    **_graph_probes(TE),
    **_graph_probes("full_iteration"),
    "cg_te_attn_sel_core": graph(TE, "attn", **sel("core_attn"), **NO_DROPOUT),
    "cg_te_attn_sel_mlp": graph(TE, "attn", **sel("mlp"), **NO_DROPOUT),
    "cg_te_attn_sel_mla": graph(
        TE, "attn", **sel("mla_up_proj"), **NO_DROPOUT, multi_latent_attention=True
    ),
    "cg_te_attn_sel_layernorm": graph(TE, "attn", **sel("layernorm"), **NO_DROPOUT),
    "cg_te_router_moe": graph(TE, "moe_router", **sel("moe"), **NO_DROPOUT, **MOE),
    "cg_te_router_off": graph(TE, "attn", **off("core_attn"), **MOE),
    "cg_local_off": graph("local", **off("core_attn"), **MOE),
    "cg_scope_fulliter_local_full": graph("local", "full_iteration", **full()),
    "cg_te_moe_nodrop": graph(TE, "moe", **MOE),
    "a2a_ok": overlap(),
    "a2a_full": overlap(**full()),
    "a2a_moe": overlap(**sel("moe")),
    "a2a_moe_act": overlap(**sel("moe_act")),
    "a2a_shared_overlap": overlap(
        moe_shared_expert_overlap=True, moe_shared_expert_intermediate_size=64
    ),
    "a2a_pp_no_vpp": overlap(pipeline_model_parallel_size=2),
    "sp_tp1": {"sequence_parallel": True},
}


def _rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


ROWS = {row["probe"]: row for row in _rows()}


def test_every_row_has_settings_and_every_settings_a_row() -> None:
    assert ROWS.keys() == SETTINGS.keys()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("probe", ROWS)
def test_same_verdict_as_the_real_configuration(probe: str, version: str) -> None:
    real = ROWS[probe][version]
    raw = RawSettings(**{**BASE, **SETTINGS[probe]})
    refusal = first_refusal(raw, resolve_revision(Framework.MEGATRON_LM, version))
    claimed = "ok" if refusal is None else refusal.raises
    if real.startswith("no such field"):
        assert claimed.startswith("TypeError: no such field"), (real, claimed)
        return
    assert claimed.startswith("ok") == real.startswith("ok"), (real, claimed)
    exception, _, message = claimed.partition(": ")
    assert real.partition(": ")[0].split()[0] == exception
    assert real.partition(": ")[2].startswith(message), (real, claimed)


def test_the_promotion_is_the_one_the_real_configuration_made() -> None:
    for version in VERSIONS[1:]:
        promoted = ", ".join(f"'{m}'" for m in RawSettings().effective_modules)
        assert ROWS["sel_unset"][version] == f"ok modules=[{promoted}] gran=selective"
        layer = RawSettings(moe_layer_recompute=True).recomputed_modules
        modules = ", ".join(f"'{m}'" for m in layer)
        assert ROWS["moe_layer_recompute"][version] == f"ok modules=[{modules}] gran=selective"
