"""What recipes of other jobs lend to one that none of them is for."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.models.options import CrossEntropyFusion
from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve
from advisor.search.advise import advise
from tests.advisor.jobs import parallel


def resolved(model: str, gpus: str, framework: str | None, **more: Any) -> Resolution:
    return resolve(Request(model=model, gpus=gpus, framework=framework, **more))


def degrees(tp: int, pp: int, vpp: int) -> dict[str, int]:
    return parallel(tp=tp, pp=pp, vpp=vpp)


def test_a_recipe_of_another_size_lends_its_options() -> None:
    found = resolved("nemotron4_340b", "1536xH100", "nemo", **degrees(8, 12, 8))
    assert found.recipe == ""
    assert found.layout.tp_comm_overlap
    assert found.config.main_grads_dtype is DType.BF16
    assert found.model.cross_entropy_fusion is CrossEntropyFusion.NATIVE
    name = "recipe launcher_nemotron_nemotron_340b"
    assert str(found.origins["layout.tp_comm_overlap"]) == name
    assert str(found.origins["job.main_grads_dtype"]) == name
    assert "options of launcher_nemotron_nemotron_340b" in found.assumptions
    assert "TP communication overlapped" in found.assumptions


def test_the_nearest_number_of_the_same_gpus_lends() -> None:
    found = resolved("llama3_70b", "128xH100", "megatron_bridge", **degrees(4, 4, 5))
    assert "options of llama3_70b_pretrain_64gpu_h100_bf16" in found.assumptions
    assert found.model.cross_entropy_fusion is CrossEntropyFusion.TE


def test_without_a_recipe_of_the_model_those_of_the_framework_have_something_in_common() -> None:
    nemo = resolved("llama2_13b", "8xH100", "nemo", **degrees(2, 1, 1))
    assert nemo.layout.tp_comm_overlap
    assert nemo.config.main_grads_dtype is DType.BF16
    assert "options of the recipes of nemo 2" in nemo.assumptions
    assert str(nemo.origins["job.main_grads_dtype"]) == "default of the recipes of nemo 2"
    bridge = resolved("llama2_13b", "8xH100", "megatron_bridge", **degrees(2, 1, 1))
    assert not bridge.layout.tp_comm_overlap
    assert bridge.config.main_grads_dtype is DType.FP32
    assert bridge.model.cross_entropy_fusion is CrossEntropyFusion.NATIVE
    # as lint asks: what a command leaves out is the framework's default
    script = resolved(
        "llama2_13b", "8xH100", "megatron_bridge", takes_recipe=False, **degrees(2, 1, 1)
    )
    assert script.model.cross_entropy_fusion is CrossEntropyFusion.NONE


def test_weights_in_eight_bits_come_with_the_precision() -> None:
    found = resolved("llama2_13b", "8xH100", "nemo", precision="fp8_delayed", **degrees(2, 1, 1))
    assert found.config.fp8_param_gather
    assert "weights of linear layers kept only in 8 bits" in found.assumptions
    blockwise = resolved(
        "llama2_13b", "8xH100", "nemo", precision="fp8_blockwise", **degrees(2, 1, 1)
    )
    assert not blockwise.config.fp8_param_gather


@pytest.mark.parametrize("gpus", ["256xH100", "512xH100"])
def test_a_recipe_of_degrees_alone_leaves_the_rest_to_the_framework(gpus: str) -> None:
    found = resolved("nemotron4_340b", gpus, "nemo")
    assert found.recipe
    assert found.layout.tp_comm_overlap
    assert found.config.main_grads_dtype is DType.BF16
    assert "options of launcher_nemotron_nemotron_340b" in found.assumptions
    megatron = resolved("nemotron4_340b", gpus, "megatron_lm")
    assert megatron.config.main_grads_dtype is DType.FP32


def test_a_recipe_that_states_its_options_is_lent_none() -> None:
    found = resolved("llama3_70b", "64xH100", "megatron_bridge")
    assert found.recipe
    assert not any("options of" in text for text in found.assumptions)


def test_a_recipe_in_eight_bits_keeps_weights_so() -> None:
    found = resolved("mixtral_8x7b", "64xH100", "nemo", precision="fp8_delayed")
    assert found.recipe == "nemo2_pre_train_mixtral_8x7b_h100_64gpu_fp8"
    assert found.config.fp8_param_gather


def test_what_is_given_stays() -> None:
    given = "job.main_grads_dtype=fp32 layout.tp_comm_overlap=false model.cross_entropy_fusion=none"
    found = resolved(
        "nemotron4_340b", "1536xH100", "nemo", overrides=tuple(given.split()), **degrees(8, 12, 8)
    )
    assert not found.layout.tp_comm_overlap
    assert found.config.main_grads_dtype is DType.FP32
    assert found.model.cross_entropy_fusion is CrossEntropyFusion.NONE
    assert str(found.origins["job.main_grads_dtype"]) == "given"
    assert not any("options of" in text for text in found.assumptions)


@pytest.mark.parametrize("off", [{"sequence_parallel": False}, {"tensor_model_parallel_size": 1}])
def test_no_overlap_without_tp_and_sequence_parallelism(off: dict[str, Any]) -> None:
    found = resolved("llama2_13b", "8xH100", "nemo", **(degrees(2, 1, 1) | off))
    assert not found.layout.tp_comm_overlap
    assert "TP communication overlapped" not in found.assumptions


@pytest.mark.parametrize("framework", [None, "megatron_lm", "fsdp2"])
def test_a_job_that_starts_from_a_script_is_lent_nothing(framework: str | None) -> None:
    more = degrees(1, 1, 1) if framework == "fsdp2" else degrees(2, 1, 1)
    found = resolved("llama2_13b", "8xH100", framework, **more)
    assert not any("options of" in text for text in found.assumptions)
    assert found.config.main_grads_dtype is DType.FP32


def test_a_search_of_layouts_keeps_what_is_lent() -> None:
    advice = advise(
        Request(
            model="mixtral_8x7b", gpus="16xH200", framework="nemo", tensor_model_parallel_size=2
        )
    )
    assert any("legal layouts" in text for text in advice.assumptions)
    assert advice.job.config.main_grads_dtype is DType.BF16
    assert advice.job.model.cross_entropy_fusion is CrossEntropyFusion.NATIVE
    assert "options of launcher_mixtral_mixtral_8x7b" in advice.assumptions


@pytest.mark.parametrize(
    ("framework", "left_out"),
    [
        ("megatron_lm", {"layout.tp_comm_overlap": False, "model.cross_entropy_fusion": "none"}),
        ("megatron_bridge", {"model.cross_entropy_fusion": "none"}),
        ("nemo", {}),
    ],
)
def test_what_a_recipe_lends_yields_to_steps_that_repeat_to_the_bit(
    framework: str, left_out: dict[str, Any]
) -> None:
    """Megatron-LM refuses both with --deterministic-mode (0.19.2 training/determinism.py), Bridge
    the fused loss, NeMo nothing."""
    found = resolved("llama3_70b", "64xH100", framework, overrides=("job.deterministic_mode=true",))
    own = {
        "layout.tp_comm_overlap": found.layout.tp_comm_overlap,
        "model.cross_entropy_fusion": found.model.cross_entropy_fusion,
    }
    assert own == {"layout.tp_comm_overlap": True, "model.cross_entropy_fusion": "te"} | left_out
    assert any("not of deterministic ones" in words for words in found.assumptions)
    words = f"{', '.join(left_out)} of the recipe left out: refused with the given values"
    assert (words in found.assumptions) == bool(left_out)
    assert all(str(found.origins[path]) == REFUSED for path in left_out)


REFUSED = "assumed: the recipe's value is refused with the given values"


def test_what_is_lent_yields_to_degrees_and_says_so() -> None:
    """Overlap of the experts' exchange needs VPP next to PP (megatron-core transformer_config.py):
    Qwen3's recipe has it, without a pipeline."""
    alone = resolved("qwen3_30b_a3b", "16xH100", None)
    assert alone.layout.overlap_moe_expert_parallel_comm
    degrees = {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8}
    found = resolved("qwen3_30b_a3b", "16xH100", None, **degrees)
    assert not found.layout.overlap_moe_expert_parallel_comm
    name = "layout.overlap_moe_expert_parallel_comm"
    words = f"{name} of the recipe left out: refused with the given values"
    assert words in found.assumptions
    assert str(found.origins[name]) == REFUSED
    more = {"virtual_pipeline_model_parallel_size": 2}
    assert resolved("qwen3_30b_a3b", "16xH100", None, **degrees, **more).layout == replace(
        found.layout, overlap_moe_expert_parallel_comm=True, **more
    )


def test_what_is_given_with_degrees_is_refused_all_the_same() -> None:
    request = Request(
        model="qwen3_30b_a3b",
        gpus="16xH100",
        pipeline_model_parallel_size=2,
        overrides=("layout.overlap_moe_expert_parallel_comm=true",),
    )
    with pytest.raises(UserError, match="overlap_moe_expert_parallel_comm cannot be combined"):
        advise(request)


@pytest.mark.parametrize(
    ("model", "gpus", "given", "lower"),
    [
        ("llama3_8b", "8xH100", {"tensor_model_parallel_size": 8}, "CP 1 instead of 2"),
        ("qwen3_30b_a3b", "8xB200", {"pipeline_model_parallel_size": 2}, "EP 4 instead of 8"),
        ("deepseek_v3", "256xB200", {"tensor_model_parallel_size": 32}, "PP 8 instead of 16"),
        ("llama3_70b", "64xH100", {"pipeline_model_parallel_size": 2}, "VPP 1 instead of 5"),
    ],
)
def test_a_recipe_s_degrees_are_lowered_to_go_with_given_ones(
    model: str, gpus: str, given: dict[str, Any], lower: str
) -> None:
    """To the largest divisors that do."""
    found = resolved(model, gpus, None, **given)
    assert f"{lower} to go with the given values" in found.assumptions
    assert found.job(found.layout).num_gpus == found.layout.world_size


def test_a_recipe_s_batch_gives_way_to_degrees() -> None:
    """Its 32 sequences are fewer than 128 data-parallel ranks."""
    found = resolved("mistral_7b", "128xA100", None, tensor_model_parallel_size=1)
    assert found.job(found.layout).num_microbatches > 0
    words = "job.global_batch_size of the recipe left out: refused with the given values"
    assert words in found.assumptions


def test_a_model_without_experts_leaves_out_what_a_recipe_has_for_them() -> None:
    dense = "model.num_moe_experts=null model.moe_ffn_hidden_size=null"
    found = resolved("qwen3_30b_a3b", "16xH100", None, overrides=tuple(dense.split()))
    assert found.layout.expert_model_parallel_size == 1
    assert not parts_of("megatron_lm").settings.check_job(found.job(found.layout))


def test_what_is_lent_yields_to_a_setting_that_is_asked_for() -> None:
    """Full recompute goes with no overlap of the experts' exchange (transformer_config.py)."""
    found = resolved("qwen3_30b_a3b", "16xH100", None, recompute=("full:uniform:1",))
    assert not found.layout.overlap_moe_expert_parallel_comm
    full = parts_of("megatron_lm").settings.parse("full:uniform:1")
    assert not parts_of("megatron_lm").settings.check(full, found.job(found.layout))


def test_what_is_given_with_them_is_refused() -> None:
    given = ("job.deterministic_mode=true", "model.cross_entropy_fusion=native")
    with pytest.raises(UserError, match="whose kernels are not deterministic"):
        advise(Request(model="llama3_70b", gpus="64xH100", overrides=given))


def test_a_recipes_framework_is_not_taken_where_it_lacks_what_is_given() -> None:
    """The nearest recipe is NeMo's, which has no Muon; Bridge builds the model as well."""
    plain = resolved("llama4_scout_17b_16e", "64xH100", None)
    muon = resolved("llama4_scout_17b_16e", "64xH100", None, overrides=("job.optimizer=dist_muon",))
    assert (plain.config.framework, muon.config.framework) == ("nemo", "megatron_bridge")
    assert muon.config.optimizer.is_muon


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"pipeline_model_parallel_size": 16}, "must divide the number of GPUs = 8"),
        ({"overrides": ("job.fp8_param_gather=true",)}, "--precision fp8_current, or leave it out"),
        ({"overrides": ("job.torch_compile=true",)}, "megatron_lm; leave it out, or --framework"),
    ],
)
def test_what_to_do_about_a_job_that_cannot_be(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        resolved("llama3_8b", "8xH100", None, **more)
