"""What recipes of other jobs lend to one that none of them is for."""

import re
from typing import Any

import pytest

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.models.options import CrossEntropyFusion
from advisor.request.request import Request
from advisor.request.resolve import Resolution, resolve
from advisor.search.advise import advise


def resolved(model: str, gpus: str, framework: str | None, **more: Any) -> Resolution:
    return resolve(Request(model=model, gpus=gpus, framework=framework, **more))


def degrees(tp: int, pp: int, vpp: int) -> dict[str, int]:
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
    }


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


def test_what_a_recipe_lends_yields_to_steps_that_repeat_to_the_bit() -> None:
    """Megatron refuses both with --deterministic-mode (0.19.2 training/determinism.py)."""
    deterministic = ("job.deterministic_mode=true",)
    for framework in (None, "megatron_lm", "megatron_bridge", "nemo"):
        found = resolved("llama3_70b", "64xH100", framework, overrides=deterministic)
        assert not found.layout.tp_comm_overlap
        assert found.model.cross_entropy_fusion is CrossEntropyFusion.NONE
        assert any("not of deterministic ones" in words for words in found.assumptions)
        assert any("model.cross_entropy_fusion of the" in words for words in found.assumptions)


def test_what_is_given_with_them_is_refused() -> None:
    given = ("job.deterministic_mode=true", "model.cross_entropy_fusion=te")
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
