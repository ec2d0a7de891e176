"""Jobs that train adapters, or a part of the layers: what they hold, what is said of them, and what
they are refused."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.job.pipeline_split import ModelChunk
from advisor.job.tuning import FULL, Adapter, StoredAs, Tuning
from advisor.layers.operators import Weight
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_operators, transformer_layer
from advisor.lint.target import lint_target
from advisor.memory.static import (
    scale_bytes,
    stage_weights,
    stored_bytes,
    trained_elements,
    tuned_bytes,
)
from advisor.models.layer_kind import DENSE
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.report.header import tuning_words
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.explain import memory_lines
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches, evaluator_of

HUGGINGFACE = "huggingface"
LORA = "tuning.adapter=lora"


def ask(*overrides: str, model: str = "qwen3_8b", gpus: str = "1xH100", **fields: Any) -> Answer:
    given = {"framework": HUGGINGFACE, **batches(4096, 1, 8), **fields}
    return advise(Request(model=model, gpus=gpus, overrides=overrides, quick=True, **given))


def shape_with(model: str = "qwen3_8b", **tuning: Any) -> RankShape:
    impl = TransformerImpl.TRANSFORMERS
    plain = replace(load_model(model), transformer_impl=impl, make_vocab_size_divisible_by=1)
    return RankShape(model=plain, seq_length=128, micro_batch_size=1, tuning=Tuning(**tuning))


def whole(shape: RankShape) -> tuple[ModelChunk, ...]:
    return (ModelChunk(shape.model.layer_kinds, True, True),)


def test_trained_parameters_of_lora() -> None:
    """Of Qwen3 8B, rank 16, 36 layers: (in + out) of q 4096 + 4096, k and v 4096 + 1024, o as q,
    gate and up 4096 + 12288, down as these."""
    widths = 2 * 8192 + 2 * 5120 + 3 * 16384
    shape = shape_with(adapter=Adapter.LORA, rank=16)
    assert trained_elements(shape, whole(shape)) == (36 * 16 * widths, 0) == (43_646_976, 0)
    two = shape_with(adapter=Adapter.LORA, rank=16, target_modules=("q_proj", "v_proj"))
    assert trained_elements(two, whole(two))[0] == 36 * 16 * (8192 + 5120)
    dora = shape_with(adapter=Adapter.DORA, rank=16, target_modules=("q_proj", "v_proj"))
    assert trained_elements(dora, whole(dora))[0] == 36 * (16 * (8192 + 5120) + 4096 + 1024)


def test_a_saved_module_is_a_copy_that_is_trained() -> None:
    """Next to the original: [151936, 4096]."""
    plain = shape_with(adapter=Adapter.LORA)
    saved = shape_with(adapter=Adapter.LORA, modules_to_save=("lm_head",))
    end = 151936 * 4096
    before, after = (
        tuned_bytes(stage_weights(s, whole(s)), DType.BF16, s.tuning) for s in (plain, saved)
    )
    assert after == (before[0] + 2 * end, before[1])


def test_frozen_ends_alone() -> None:
    shape = shape_with(freeze_embedding=True)
    assert (
        trained_elements(shape_with(), whole(shape))[0] - trained_elements(shape, whole(shape))[0]
        == 151936 * 4096
    )
    assert {w.name for w, _ in stage_weights(shape, whole(shape)) if w.frozen} == {
        "word_embeddings.weight"
    }
    output = shape_with(freeze_output=True)
    assert {w.name for w, _ in stage_weights(output, whole(output)) if w.frozen} == {
        "output_layer.weight"
    }
    assert not any(
        operator.saved_for_weights & {"final_norm.normalized"}
        for operator in head_operators(shape_with(adapter=Adapter.LORA))
    )


@pytest.mark.parametrize(
    ("stored", "double", "expected"),
    [
        (StoredAs.AS_LOADED, True, 2 * 4096 * 1024),
        (StoredAs.INT8, True, 4096 * 1024 + 4096 * 4),
        (StoredAs.NF4, False, 4096 * 1024 // 2 + 4 * (4096 * 1024 // 64) + 64),
        (StoredAs.NF4, True, 4096 * 1024 // 2 + 65536 + 4 * 256 + 4 + 64),
    ],
)
def test_bytes_of_a_stored_weight(stored: StoredAs, double: bool, expected: int) -> None:
    """As bitsandbytes 0.50.2 has them; the last two are also its own QuantState's on a CPU."""
    weight = Weight("w", (4096, 1024), in_linear=True, frozen=True, stored_as=stored)
    tuning = Tuning(adapter=Adapter.LORA, double_quantization=double)
    assert stored_bytes(weight, DType.BF16, tuning) == expected
    assert scale_bytes(weight, tuning) < expected


def test_frozen_layers_before_the_trained_ones_keep_nothing() -> None:
    shape = shape_with(num_trainable_layers=4)
    still = transformer_layer(shape, DENSE._replace(constant=True))
    assert all(operator.no_grad and not operator.saved for operator in still)
    layers = trained_elements(shape_with(), (ModelChunk(shape.model.layer_kinds),))[0] // 36
    assert trained_elements(shape, whole(shape)) == (4 * layers, 0)
    less, more = (ask(f"tuning.num_trainable_layers={n}", recompute=("none",)) for n in (2, 4))
    first, second = (one.candidates[0].evaluation for one in (less, more))
    assert first.peak_reserved_bytes < second.peak_reserved_bytes
    assert first.step_time_seconds < second.step_time_seconds


def test_lora_needs_less_and_is_explained_apart() -> None:
    """Frozen weights and trained ones; a backward without most of the weights' GEMMs."""
    full, lora = (
        ask(*given, recompute=("full",)).candidates[0].evaluation for given in ((), (LORA,))
    )
    assert lora.peak_reserved_bytes < full.peak_reserved_bytes / 2
    given = (LORA, "tuning.target_modules=q_proj", "tuning.adapter_dtype=bf16")
    little = ask(*given, recompute=("full",)).candidates[0].evaluation
    assert little.step_time_seconds < full.step_time_seconds < lora.step_time_seconds * 1.2
    found = {line.name: line.num_bytes for line in memory_lines(lora)}
    assert found["trained weights"] == 4 * 43_646_976
    assert found["frozen weights, as they are stored"] == 2 * 8_190_735_360


def test_what_is_trained_in_words() -> None:
    _, job = stack_job(HUGGINGFACE, "1xH100", overrides=(LORA, "tuning.rank=8"))
    assert tuning_words(job) == "LoRA rank 8 on all linear layers: 21 M of 8.03 B trained"
    given = (LORA, "tuning.target_modules=q_proj,v_proj", "tuning.base_weights=nf4")
    _, job = stack_job(HUGGINGFACE, "1xH100", overrides=given)
    words = "LoRA rank 16 on q_proj, v_proj over NF4 weights (QLoRA): 6.82 M of 8.03 B trained"
    assert tuning_words(job) == words
    _, job = stack_job(HUGGINGFACE, "1xH100", overrides=("tuning.freeze_embedding=true",))
    assert tuning_words(job) == "all but the embedding: 7.5 B of 8.03 B trained"
    _, job = stack_job(HUGGINGFACE, "1xH100", overrides=("tuning.num_trainable_layers=2",))
    assert tuning_words(job).startswith("the last 2 layers: ")


def test_adapters_are_offered_where_nothing_else_is_enough() -> None:
    """8B on 44 GiB: LoRA; 70B on one GPU: over NF4; never where something else makes it fit."""
    last = ask(gpus="1xL40S").remedies[-1]
    assert last.change.startswith("tuning.adapter=lora (package peft)")
    last = ask(model="llama3_70b").remedies[-1]
    assert last.change.startswith("tuning.adapter=lora tuning.base_weights=nf4")
    assert not ask().remedies


@pytest.mark.parametrize("gpus", ["8xH100", "1xH100"])
@pytest.mark.parametrize("framework", [HUGGINGFACE, "deepspeed"])
def test_the_optimizer_has_what_is_trained(framework: str, gpus: str) -> None:
    """DeepSpeed's fp32 states are 12 bytes, torch's Adam has two moments in the weights' type."""
    impl = ("model.transformer_impl=transformers",) if framework == "deepspeed" else ()
    parts, job = stack_job(framework, gpus, overrides=(LORA, *impl))
    evaluator = evaluator_of(job)
    (detail,) = evaluator.stage_details(parts.settings.none, simulated=False)
    trained, _ = trained_elements(evaluator.shape, whole(evaluator.shape))
    each = 12 if framework == "deepspeed" else 8
    assert detail.fixed.static.optimizer == pytest.approx(trained * each / job.num_gpus, rel=1e-6)
    assert trained == 41_943_040


REFUSED = {
    ("tuning.target_modules=wqkv",): "has no linear layer wqkv",
    ("job.torch_compile=true",): "is not modelled with adapters",
    ("tuning.dropout=0.1", "tuning.target_modules=experts.down_proj"): "must be 0 for adapters of",
    ("tuning.adapter=dora", "tuning.target_modules=experts.down_proj"): "has no form for experts",
    ("tuning.adapter=dora", "tuning.base_weights=nf4"): "hand on fp32",
    ("job.weights_dtype=fp32", "tuning.base_weights=nf4"): "prepare_model_for_kbit_training",
}


@pytest.mark.parametrize(("given", "reason"), REFUSED.items(), ids=str)
def test_what_is_refused(given: tuple[str, ...], reason: str) -> None:
    model = "qwen3_30b_a3b" if "experts" in str(given) else "qwen3_8b"
    with pytest.raises(UserError, match=reason):
        ask(LORA, *given, model=model)


def test_adapters_of_experts_have_names() -> None:
    found = ask(LORA, "tuning.target_modules=experts.down_proj,q_proj", model="qwen3_30b_a3b")
    assert found.candidates
    assert FULL.trains_all


TRAINER = """
from transformers import Trainer, TrainingArguments
model = get_peft_model(model, LoraConfig(r=16))
{more}
args = TrainingArguments(output_dir="out", bf16=True, gradient_checkpointing=True{kwargs})
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("version", "more", "kwargs", "errors"),
    [
        ("4.57", "", "", 1),
        ("4.57", "model.enable_input_require_grads()", "", 0),
        ("4.57", "", ", gradient_checkpointing_kwargs={'use_reentrant': False}", 0),
        ("5", "", "", 0),
    ],
)
def test_reentrant_checkpoints_around_adapters(
    tmp_path: Path, version: str, more: str, kwargs: str, errors: int
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TRAINER.format(more=more, kwargs=kwargs))
    report = lint_target(str(file), version)
    found = [one.rule for part in report.checked for one in part.findings if one.level == "ERROR"]
    assert len(found) == errors, found
