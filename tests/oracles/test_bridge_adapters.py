"""Megatron Bridge's own adapters on Megatron Core's local layers: what a layer keeps, equal to the
byte; peaks of a step; parameters that are trained and those that are not.

The first layer takes less than predicted: its norm reads the frozen embedding's output, which needs
no gradient, and so it keeps no statistics, and nothing of that size goes back.
"""

from random import Random
from typing import Any, Final

import pytest

pytest.importorskip("megatron.core")

from advisor.job.tuning import Adapter, Tuning
from advisor.memory.static import stage_elements, trained_elements

from .megatron import OracleCase, bridge
from .moe_cases import MIXTRAL, OVERLAP, QWEN3_MOE, SHARED, TP
from .prediction import (
    MODELS,
    SCALARS_BYTES,
    full,
    held_by_stage,
    predicted_peak,
    predicted_saved_bytes,
    rank_shape,
    selective,
    tensor_parallel,
)
from .test_latent_attention import MODELS as LATENT

if not bridge.available():
    pytest.skip("no wheel of Megatron Bridge is unpacked", allow_module_level=True)

LORA: Final = Tuning(adapter=Adapter.LORA)
CANONICAL: Final = (
    *("linear_q", "linear_k", "linear_v", "linear_proj"),
    *("linear_fc1_up", "linear_fc1_gate", "linear_fc2"),
)
LATENT_TARGETS: Final = (
    *("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"),
    *("linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"),
)
LLAMA: Final = MODELS["llama3_8b"]


def tuning(**fields: Any) -> Tuning:
    return Tuning(**{"adapter": Adapter.LORA, **fields})


KINDS: Final = {
    "lora": LORA,
    "dropout": tuning(rank=8, dropout=0.1),
    "fc2_proj": tuning(rank=32, target_modules=("linear_fc2", "linear_proj")),
    "canonical": tuning(target_modules=CANONICAL),
    "canonical_dropout": tuning(target_modules=CANONICAL, dropout=0.05),
    "regather": tuning(sequence_parallel_input_regather=True),
    "regather_dropout": tuning(sequence_parallel_input_regather=True, dropout=0.1),
    "dora": tuning(adapter=Adapter.DORA),
}
EXPERTS: Final = {
    "mixtral": MIXTRAL.changed(expert_model_parallel_size=4, **TP),
    "one_rank": MIXTRAL,
    "qwen3": QWEN3_MOE.changed(**TP),
    "shared": MIXTRAL.changed(expert_model_parallel_size=4, **SHARED, **TP),
    "overlap": MIXTRAL.changed(**OVERLAP, **TP),
}


def random_case(seed: int) -> tuple[OracleCase, Tuning]:
    draw = Random(seed)
    tp, parallel = draw.choice(((1, False), (2, False), (2, True), (4, True)))
    case = MODELS[draw.choice(sorted(MODELS))].changed(**tensor_parallel(tp, parallel))
    case = case.changed(micro_batch_size=draw.choice((1, 2, 4)))
    kind = KINDS[draw.choice(sorted(KINDS))]
    return case, tuning(
        adapter=kind.adapter,
        rank=draw.choice((4, 8, 64)),
        target_modules=kind.target_modules,
        dropout=kind.dropout,
        sequence_parallel_input_regather=kind.sequence_parallel_input_regather,
    )


def assert_equal(case: OracleCase, tuned: Tuning) -> None:
    assert predicted_saved_bytes(case, tuning=tuned) == bridge.saved_bytes(case, tuned)


@pytest.mark.parametrize("seed", range(30))
def test_what_a_layer_keeps_in_random_cases(seed: int) -> None:
    assert_equal(*random_case(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_adapter_under_sequence_parallelism(kind: str) -> None:
    assert_equal(LLAMA.changed(**tensor_parallel(4, True)), KINDS[kind])


@pytest.mark.parametrize("kind", ["lora", "dropout", "normalized"])
@pytest.mark.parametrize("experts", EXPERTS)
def test_experts(experts: str, kind: str) -> None:
    normalized = tuning(normalize_moe_lora=True)
    assert_equal(EXPERTS[experts], KINDS.get(kind, normalized))


@pytest.mark.parametrize("targets", [LATENT_TARGETS, ("linear_proj", "linear_fc1", "linear_fc2")])
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2_lite"])
def test_latent_attention(name: str, targets: tuple[str, ...]) -> None:
    for tp, parallel in ((1, False), (4, True)):
        case = LATENT[name].changed(**tensor_parallel(tp, parallel))
        assert_equal(case, tuning(target_modules=targets))


@pytest.mark.parametrize(
    "setting", [selective("mlp"), selective("core_attn"), full("uniform", 1), full("block", 3)]
)
def test_recompute(setting: dict[str, Any]) -> None:
    case = LLAMA.changed(**tensor_parallel(4, True), **setting)
    assert_equal(case, LORA)
    assert_equal(case, KINDS["dropout"])


PEAKS: Final = {
    "whole": {},
    "tp2": tensor_parallel(2, False),
    "sp": tensor_parallel(4, True),
    "mlp": {**tensor_parallel(4, True), **selective("mlp")},
    "full": {**tensor_parallel(4, True), **full("uniform", 1)},
    "pp": {"pipeline_model_parallel_size": 2, "num_microbatches": 4, **tensor_parallel(4, True)},
}


@pytest.mark.parametrize("kind", ["lora", "canonical", "regather", "dora"])
@pytest.mark.parametrize("setting", PEAKS)
def test_peak_of_a_step(setting: str, kind: str) -> None:
    if (setting, kind) == ("full", "regather"):
        return  # the buffer that is predicted for it is not made: nothing is gathered again
    case = LLAMA.changed(**PEAKS[setting])
    shape = rank_shape(case)
    statistics = shape.norm_seq * shape.micro_batch_size * 4  # of the first norm, in fp32
    first = shape.hidden("").num_bytes + case.pipeline_model_parallel_size * statistics
    for stage in range(case.pipeline_model_parallel_size):
        predicted = predicted_peak(case, stage, tuning=KINDS[kind])
        difference = predicted - bridge.activation_peak(case, KINDS[kind], stage)
        assert -SCALARS_BYTES <= difference <= first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [LLAMA.changed(**TP), *EXPERTS.values()])
def test_parameters_trained_and_frozen(case: OracleCase, kind: str) -> None:
    """DoRA has no adapters of experts."""
    if kind == "dora" and case.has_experts:
        return
    shape = rank_shape(case, tuning=KINDS[kind])
    (held,) = held_by_stage(shape)
    trained, _ = trained_elements(shape, held)
    found = trained, stage_elements(shape, held) - trained
    assert found == bridge.parameters(case, KINDS[kind])


@pytest.mark.parametrize("stages", [1, 2])
def test_layernorm_recompute_fails_in_the_first_layer(stages: int) -> None:
    case = LLAMA.changed(
        pipeline_model_parallel_size=stages,
        num_microbatches=stages,
        **tensor_parallel(2, True),
        **selective("layernorm"),
    )
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        bridge.measured_peak(case, LORA, 0)
    if stages > 1:
        bridge.measured_peak(case, LORA, 1)
