"""Layers that linear attention and hybrid patterns make, how they are split, what is refused."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout, check_model_fits_layout, legal_tensor_parallel_sizes
from advisor.job.pipeline_split import pipeline_stages
from advisor.models.layer_kind import FeedForward, LayerKind, Mixer, Role
from advisor.models.layer_pattern import LayerPattern
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec

QWEN, NEMOTRON = load_model("qwen3_next_80b_a3b"), load_model("nemotron3_nano_30b_a3b")
PIPES = replace(NEMOTRON, num_layers=6, hybrid_layer_pattern="ME|M*|E|-")


def mixers(model: ModelSpec) -> str:
    return "".join(
        "L" if kind.mixer is Mixer.GATED_DELTA_NET else "*" for kind in model.layer_kinds
    )


def test_three_of_four_layers_are_linear() -> None:
    assert mixers(QWEN) == "LLL*" * 12
    assert mixers(replace(QWEN, num_layers=6)) == "LLL*LL"
    listed = replace(QWEN, num_layers=3, linear_attention_freq=LayerPattern("[0,1,1]"))
    assert mixers(listed) == "*LL"
    assert {kind.feed_forward for kind in QWEN.layer_kinds} == {FeedForward.MOE}


def test_one_letter_a_layer() -> None:
    assert Counter(NEMOTRON.layer_kinds) == {
        LayerKind(Mixer.MAMBA, FeedForward.NONE): 23,
        LayerKind(Mixer.NONE, FeedForward.MOE): 23,
        LayerKind(Mixer.FULL, FeedForward.NONE): 6,
    }
    assert PIPES.layer_kinds[-1] == LayerKind(Mixer.NONE, FeedForward.DENSE)


def test_multi_token_prediction_attends_as_the_last_layer_does() -> None:
    (stages,) = pipeline_stages(replace(QWEN, mtp_num_layers=1), ParallelLayout())
    assert stages[-1].layers[-1] == QWEN.layer_kinds[3]._replace(role=Role.MULTI_TOKEN_PREDICTION)


def stages_of(model: ModelSpec, pp: int, **more: Any) -> Any:
    return pipeline_stages(model, ParallelLayout(pipeline_model_parallel_size=pp, **more))


VPP = {"virtual_pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("model", "pp", "more", "layers"),
    [
        (NEMOTRON, 4, {}, [[13]] * 4),
        (PIPES, 4, {}, [[2], [2], [1], [1]]),
        (PIPES, 2, VPP, [[2, 1], [2, 1]]),
        (NEMOTRON, 2, {"num_layers_in_first_pipeline_stage": 20}, [[20], [32]]),
    ],
)
def test_stages_of_a_pattern(model, pp, more, layers) -> None:
    stages = stages_of(model, pp, **more)
    assert [[chunk.num_layers for chunk in chunks] for chunks in stages] == layers
    whole = [stages[stage][chunk] for chunk in range(len(stages[0])) for stage in range(pp)]
    assert tuple(kind for chunk in whole for kind in chunk.layers) == model.layer_kinds


@pytest.mark.parametrize(
    ("model", "pp", "more", "says"),
    [
        (NEMOTRON, 2, VPP, "size = 2: cannot be combined with hybrid"),
        (NEMOTRON, 1, {"pipeline_model_parallel_layout": "Et*52L"}, "cannot be combined with"),
        (PIPES, 3, {}, "has 4 segments, but PP x VPP = 3"),
        (PIPES, 4, {"num_layers_in_first_pipeline_stage": 1}, "first_pipeline_stage; give one"),
        (PIPES, 4, {"pipeline_model_parallel_layout": "Ett|tt|t|tL"}, "parallel_layout; give one"),
    ],
)
def test_splits_that_are_refused(model, pp, more, says) -> None:
    with pytest.raises(UserError, match=says):
        stages_of(model, pp, **more)


def test_heads_are_cut_by_tp_and_cp() -> None:
    assert legal_tensor_parallel_sizes(NEMOTRON) == (1, 2, 4, 8)  # groups of Mamba
    with pytest.raises(UserError, match="TP x CP = 32: must divide linear_num_key_heads = 16"):
        check_model_fits_layout(
            QWEN,
            ParallelLayout(
                tensor_model_parallel_size=8, context_parallel_size=4, sequence_parallel=True
            ),
        )


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        (QWEN, {"experimental_attention_variant": None}, "needs experimental_attention_variant"),
        (QWEN, {"linear_num_key_heads": 5}, "must divide linear_num_value_heads = 32"),
        (QWEN, {"linear_key_head_dim": 0}, "linear_key_head_dim = 0: must be between 1"),
        (QWEN, {"linear_attention_freq": LayerPattern("[1,0]")}, "but the model has 48"),
        (QWEN, {"window_size": 64}, "window_size = 64: is not modelled together with linear att"),
        (QWEN, {"multi_latent_attention": True, "num_query_groups": 16}, "with linear attention"),
        (NEMOTRON, {"num_layers": 12}, "has 52 layers, but num_layers = 12"),
        (NEMOTRON, {"num_layers": 2, "hybrid_layer_pattern": "M+"}, "must not hold '[+]'"),
        (NEMOTRON, {"mtp_num_layers": 1}, "mtp_num_layers = 1: is not modelled together with hyb"),
        (NEMOTRON, {"mamba_num_groups": 5}, "must divide the 64 heads of Mamba"),
        (NEMOTRON, {"mamba_num_heads": None, "mamba_head_dim": 50}, "2 x hidden_size = 5376"),
    ],
)
def test_refusals(model: ModelSpec, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        replace(model, **changes)
