"""Hugging Face's switches of 2026: what goes to the host, what is saved, optimizers in pages, and
the losses of experts."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import ALL_TO_HOST, parse_setting
from advisor.job.job import Optimizer
from advisor.job.pipeline_split import pipeline_stages
from advisor.lint.target import lint_target
from advisor.memory.chunk import chunk_footprint
from advisor.memory.chunk_units import kept_bytes
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.search.rank_shape import rank_shape
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches
from tests.oracles.stacks.shapes import shape_of

HOW = Semantics(starts_with_first=True)


def test_inputs_on_the_host_free_what_the_pull_request_says() -> None:
    """transformers PR 48444: 194.1 to 66.1 MB, 128.0 less = layers x sequence x hidden x 2."""
    model = replace(load_model("qwen3_0.6b"), num_layers=8, hidden_size=1024)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=8192, mbs=1)
    plans = (chunk_plan(parse_setting(f"full{x}"), shape, model.layer_kinds, HOW) for x in SUFFIXES)
    full, away = (chunk_footprint(shape, plan, True, True).kept for plan in plans)
    assert full - away == 128 * 2**20


SUFFIXES = ("", "+offload")


def test_all_on_the_host() -> None:
    assert parse_setting("none+offload") == ALL_TO_HOST
    assert ALL_TO_HOST.spec == "none+offload"
    model = replace(load_model("llama3_8b"), num_layers=4)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=8192, mbs=1)
    none, away = (
        kept_bytes(shape, chunk_plan(parse_setting(text), shape, model.layer_kinds, HOW))
        for text in ("none", "none+offload")
    )
    assert away < none / 100
    parts, job = stack_job("fsdp2")
    assert "has no option offload" in parts.settings.check(ALL_TO_HOST, job)[0].reason


def test_what_is_asked_for_alone_is_not_ranked() -> None:
    """No argument of a Trainer saves attention."""
    parts, job = stack_job("huggingface")
    tried = [setting.spec for setting in parts.settings.tried(job)]
    saves = parse_setting("op:save_attention")
    assert saves.spec not in tried
    assert not {*tried} & {"none+offload"}
    assert parts.settings.check(saves, job) == ()
    said = " ".join(parts.settings.notes(saves, job))
    assert "selective_checkpointing" in said
    assert "--activation_offloading" in " ".join(parts.settings.notes(ALL_TO_HOST, job))
    with pytest.raises(UserError, match="cannot be written"):
        parts.spelling.config_file(saves, job)


@pytest.mark.parametrize(
    ("optimizer", "of_a_norm"),
    [(Optimizer.PAGED_8BIT, 2 * (4096 + 16 * 4)), (Optimizer.PAGED_32BIT, 2 * 4096 * 4)],
)
def test_moments_in_unified_memory(optimizer: Optimizer, of_a_norm: int) -> None:
    """bitsandbytes 0.50.2 get_state_buffer: those of 100,000 elements or more are not torch's."""
    sizes = {}
    for name in ("adamw_8bit", str(optimizer)):
        parts, job = stack_job("huggingface", gpus="1xH200", overrides=(f"job.optimizer={name}",))
        (stage,) = pipeline_stages(job.model, job.layout)
        fixed = parts.memory.fixed_memory(job, rank_shape(job), stage)
        sizes[name] = fixed.static.optimizer
        words = fixed.words.optimizer[0]
    norms = 65  # two of each layer, and the last one: all weights that are small
    assert sizes[str(optimizer)] == norms * of_a_norm
    assert sizes["adamw_8bit"] > 10e9
    assert "unified memory" in words


AXOLOTL = """
base_model: Qwen/Qwen3-8B
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: true
gradient_checkpointing: true
"""
ADAPTER = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"


@pytest.mark.parametrize(
    ("more", "setting"),
    [
        ("", "full"),
        ("activation_offloading: hidden_states\n", "full+offload"),
        ("activation_offloading: true\n", "full+offload"),
        ("activation_offloading: legacy\n" + ADAPTER, "none+offload"),
        ("activation_offloading: hidden_states\n" + ADAPTER, "full+offload"),
        ("selective_checkpointing: true\n", "op:save_attention"),
        ("selective_checkpointing:\n  save: [attention]\n", "op:save_attention"),
    ],
)
def test_axolotl_offloads_and_saves(tmp_path: Path, more: str, setting: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(AXOLOTL + more)
    report = lint_target(str(file))
    assert report.checked[0].understood == f"checkpointing {setting}"
    assert "optimizer" not in report.verdict


def test_accelerates_checkpoints_are_not_a_trainers(tmp_path: Path) -> None:
    """accelerate 1.15 fsdp2_apply_ac wraps whole layers without use_reentrant, where a Trainer's
    checkpoints of transformers 4 have it."""
    file = tmp_path / "a.yaml"
    file.write_text(
        "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config:\n"
        "  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n"
    )
    said = [lint_target(str(file), version).checked[0].understood for version in ("4", "5")]
    assert said == ["checkpointing full+no_reentrant", "checkpointing full"]


def test_the_loss_of_experts_needs_experts() -> None:
    with pytest.raises(UserError, match="needs transformers' layers with experts"):
        stack_job("huggingface", overrides=("head.router_aux_loss=stacked",))


LONG = batches(131072, 1, 64)


def test_the_loss_of_experts_before_it_was_mended() -> None:
    """At 128k tokens its stack of all layers is more than all logits (transformers PR 48131)."""
    peaks = {}
    for how in ("none", "by_layer", "stacked"):
        overrides = f"head.router_aux_loss={how}", "model.vocab_size=1024"
        _, job = stack_job(
            "huggingface", "64xH200", model="qwen3_30b_a3b", overrides=overrides, **LONG
        )
        shape, kinds = rank_shape(job), job.model.layer_kinds
        plan = chunk_plan(parse_setting("full"), shape, kinds, HOW)
        peaks[how] = chunk_footprint(shape, plan, True, True).forward.num_bytes / 1e9
    assert peaks["by_layer"] - peaks["none"] < 4
    assert peaks["stacked"] - peaks["none"] > 60
