"""Models that see: their towers in config.json files, what is said of them, and what is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import parse_setting
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.parameters import parameter_count
from advisor.models.presets import load_model, load_preset
from advisor.models.vision import VisionTower
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.rank_shape import rank_shape
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches, evaluator_of

PRESETS = ("qwen2.5_vl_7b", "qwen3_vl_8b", "qwen3_vl_30b_a3b")
_QWEN25 = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "image_token_id": 151655,
    "vision_config": {
        **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        **{"in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "window_size": 112},
        **{"fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu"},
    },
}
_QWEN3 = {
    "model_type": "qwen3_vl",
    "tie_word_embeddings": False,
    "text_config": {
        **{"model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288},
        **{"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144},
    },
    "vision_config": {"out_hidden_size": 4096},
}


def _written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "its.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "preset"), [(_QWEN25, "qwen2.5_vl_7b"), (_QWEN3, "qwen3_vl_8b")]
)
def test_a_config_json_has_the_tower_of_its_preset(tmp_path, config, preset) -> None:
    read = load_model(_written(tmp_path, config))
    assert replace(read, name=preset) == load_model(preset)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_transformers(name: str) -> None:
    preset = load_preset(name)
    assert preset.published_parameters is not None
    assert parameter_count(preset.spec).total == preset.published_parameters.value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vision_config": None}, "vision_config.*is missing"),
        ({"vision_config": {"out_hidden_size": 64}}, "must be the decoder's hidden_size"),
        ({"vision_config": {"out_hidden_size": 4096, "depths": 3}}, "depths"),
        ({"vision_config": {"out_hidden_size": 4096, "hidden_act": "relu"}}, "hidden_act"),
        ({"vision_config": {"out_hidden_size": 4096, "num_heads": 7}}, "must divide"),
    ],
)
def test_another_tower_is_refused(tmp_path, changes, says) -> None:
    with pytest.raises(UserError, match=says):
        load_model(_written(tmp_path, {**_QWEN3, **changes}))


def test_sizes_of_a_tower() -> None:
    sizes = {"num_layers": 1, "hidden_size": 64, "ffn_hidden_size": 64, "num_attention_heads": 4}
    assert VisionTower(**sizes, patch_size=14, window_size=112).window_patches == 64
    assert VisionTower(**sizes, patch_size=14).window_patches is None
    with pytest.raises(UserError, match="window_size"):
        VisionTower(**sizes, patch_size=14, window_size=14)
    with pytest.raises(UserError, match=r"vision\.patch_size"):
        VisionTower(**sizes, patch_size=0)


def test_other_towers_are_said_to_be_left_out(tmp_path: Path) -> None:
    text = {
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512},
        "max_position_embeddings": 4096,
    }
    model = load_model(_written(tmp_path, {"model_type": "mistral3", "text_config": text}))
    assert model.name == "its (text alone)"


@pytest.mark.parametrize(
    ("framework", "overrides", "says"),
    [
        ("huggingface", (), "text alone, the tower does not run: samples.image_tokens=N"),
        ("huggingface", ("samples.image_tokens=1024",), ""),
        ("torchtitan", (), "text alone: vision towers are not modelled for torchtitan"),
        ("megatron_lm", (), "text alone: vision towers are not modelled for megatron_lm"),
    ],
)
def test_text_alone_is_said(framework: str, overrides: tuple[str, ...], says: str) -> None:
    request = Request(
        model="qwen3_vl_8b",
        gpus="8xH100",
        framework=framework,
        overrides=overrides,
        **batches(4096, 1, 8),
    )
    lines = [line for line in resolve(request).assumptions if line.startswith("text alone")]
    assert [line[: len(says)] for line in lines] == ([says] if says else [])


@pytest.mark.parametrize(
    ("override", "says"),
    [("samples.image_tokens=-1", "at least 0"), ("samples.images=0", "at least 1")],
)
def test_images_of_no_sense(override: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        stack_job("huggingface", model="qwen3_vl_8b", overrides=(override,))


@pytest.mark.parametrize("gpus", ["1xH200", "8xH200"])
def test_what_is_frozen_has_no_gradient_and_no_moment(gpus: str) -> None:
    """676,550,144 parameters before the decoder, 44,574,464 of them the projector's."""
    static = {}
    for frozen in (
        (),
        ("tuning.freeze_vision_model=true",),
        ("tuning.freeze_vision_model=true", "tuning.freeze_vision_projection=true"),
    ):
        parts, job = stack_job(
            "huggingface", gpus, model="qwen2.5_vl_7b", overrides=frozen, **batches(4096, 1, 16)
        )
        (stage,) = pipeline_stages(job.model, job.layout)
        static[len(frozen)] = parts.memory.fixed_memory(job, rank_shape(job), stage).static
    each = job.num_gpus
    moments = 2 * (2 if each == 1 else 4)  # bytes of two, in the type of the weights
    less = [static[n].optimizer - static[n + 1].optimizer for n in range(2)]
    assert less[0] == pytest.approx((676_550_144 - 44_574_464) * moments / each, rel=1e-4)
    assert less[1] == pytest.approx(44_574_464 * moments / each, rel=1e-4)
    assert static[0].gradients > static[1].gradients > static[2].gradients


def test_blocks_of_a_tower_are_counted_before_layers() -> None:
    """every_n_layers counts all checkpointed layers of the model: with 32 blocks before them, every
    third layer of the decoder is another than without."""
    model = load_model("qwen2.5_vl_7b")
    _, job = stack_job("huggingface", model=model, overrides=("samples.image_tokens=1024",))
    shape, layers = rank_shape(job), (*model.tower_kinds, *model.layer_kinds)
    how, setting = Semantics(starts_with_first=True), parse_setting("selective:3")
    plan = chunk_plan(setting, shape, layers, how)
    whole = [s.whole for s in plan.segments for _ in range(s.total_layers)]
    assert [number for number, one in enumerate(whole) if one] == [*range(0, len(layers), 3)]
    blind = chunk_plan(setting, replace(shape, image_tokens=0), layers, how)
    assert blind.num_layers == model.num_layers


def test_images_take_memory_and_time() -> None:
    overrides = ((), ("samples.image_tokens=4096",))
    jobs = [stack_job("huggingface", model="qwen2.5_vl_7b", overrides=one)[1] for one in overrides]
    text, images = (evaluator_of(job).evaluate(parse_setting("full")) for job in jobs)
    assert images.time_seconds.total > 1.1 * text.time_seconds.total
    assert images.peak_reserved_bytes > text.peak_reserved_bytes
