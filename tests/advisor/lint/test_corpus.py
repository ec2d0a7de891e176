"""Configurations in the formats of all frameworks: nothing false of correct ones, and the faults.

Each is written after a public launch script or configuration of its framework. Those in `untuned_`
folders were written when the reader was done: it said nothing false of the ten correct ones and
found nine faults of ten (it read no `llama3_8b` in `pretrain_llama3_8b.py`).
"""

from pathlib import Path

import pytest

from advisor.base.rule import Level
from advisor.lint.target import lint_target

FOLDER = Path(__file__).parent / "configurations"
CORRECT = sorted((*(FOLDER / "correct").iterdir(), *(FOLDER / "untuned_correct").iterdir()))
FAULTS = {
    "accelerate_offload_alone.yaml": ("fsdp_reshard_after_forward", 9),
    "bridge_overrides.sh": ("full_needs_method", 5),
    "bridge_provider.py": ("distribute_with_sequence_parallel", 14),
    "bridge_recipe_fp8_layernorm.py": ("fp8_layernorm_recompute", 9),
    "deepspeed_contiguous.json": ("activation_checkpointing.contiguous_memory_optimization", 7),
    "deepspeed_docstring_key.json": ("unknown_key", 7),
    "deepspeed_heredoc.sh": ("precision", 6),
    "deepspeed_offload_stage2.json": ("offload_param.stage", 7),
    "hf_checkpointing_twice.sh": ("checkpointing_twice", 4),
    "hf_use_cache.py": ("use_cache", 3),
    "megatron_backend_environment.sh": ("attention_environment", 2),
    "megatron_checkpoint_activations.sh": ("checkpoint_activations", 13),
    "megatron_connections.sh": ("device_max_connections", 2),
    "megatron_core_attn_under_flash.sh": ("core_attn_under_flash", 6),
    "megatron_full_without_layers.sh": ("full_needs_num_layers", 4),
    "megatron_graphs_full.sh": ("cuda_graph_full_recompute", 2),
    "megatron_layernorm_dense.sbatch": ("layernorm_on_te", 8),
    "megatron_misspelt_module.sh": ("recompute_modules", 2),
    "megatron_model_config.yaml": ("recompute_method", 9),
    "megatron_moe_label_dense.sh": ("moe_labels_on_dense", 2),
    "megatron_not_a_number.sh": ("wrong_type", 5),
    "megatron_offload_pipeline.sh": ("cpu_offloading_pipeline", 5),
    "megatron_one_branch_wrong.sh": ("distribute_with_sequence_parallel", 8),
    "megatron_selective_with_layers.sh": ("selective_num_layers", 6),
    "megatron_underscore_option.sh": ("unknown_option", 6),
    "nemo1_config.yaml": ("full_needs_method", 12),
    "nemo2_recipe.py": ("selective_num_layers", 7),
    "torchtitan_budget_command.sh": ("memory_budget.compile", 3),
    "torchtitan_mode.toml": ("mode", 10),
    "torchtitan_option_number.toml": ("selective_ac_option", 14),
}
"""The rule that must fire, and the line on which the fault is, or one of the two that clash."""


UNTUNED = {
    "accelerate_policy.yaml": "fsdp_auto_wrap_policy",
    "bridge_dense_moe_labels.sh": "moe_labels_on_dense",
    "deepspeed_zero_typo.json": "unknown_key",
    "hf_fp16_and_bf16.sh": "precision",
    "hf_kwargs_without_switch.py": "checkpointing_kwargs.unused",
    "megatron_distribute_tp1.sh": "distribute_needs_tp",
    "megatron_granularity_typo.sh": "recompute_granularity",
    "megatron_offload_and_recompute.sh": "cpu_offloading_recompute",
    "megatron_vpp_uniform_branch.sh": "selective_num_layers",
    "torchtitan_wrong_key.toml": "parallelism.unknown_field",
}


def bad(path: Path) -> dict[str, int]:
    """Rules that say ERROR or WARNING, with the line."""
    findings = lint_target(str(path)).findings
    return {f.rule: f.place.line for f in findings if f.level is not Level.NOTE}


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.name)
def test_nothing_is_said_against_a_correct_configuration(path: Path) -> None:
    assert bad(path) == {}


def test_the_corpus_is_complete() -> None:
    assert len(CORRECT) >= 30
    assert {path.name for path in (FOLDER / "faulty").iterdir()} == set(FAULTS)
    assert len(FAULTS) >= 30


def test_nine_of_ten_faults_are_found(record_property) -> None:
    missed = [
        name for name, (rule, _) in FAULTS.items() if rule not in bad(FOLDER / "faulty" / name)
    ]
    found = len(FAULTS) - len(missed)
    record_property("faults_found", f"{found} of {len(FAULTS)}")
    print(f"{found} of {len(FAULTS)} faults found; missed: {missed}")
    assert found >= 0.9 * len(FAULTS), missed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_shown_where_it_stands(name: str) -> None:
    rule, line = FAULTS[name]
    found = bad(FOLDER / "faulty" / name)
    if rule in found:
        assert found[rule] == line


def test_faults_that_the_reader_was_not_written_for() -> None:
    folder = FOLDER / "untuned_faulty"
    assert {path.name for path in folder.iterdir()} == set(UNTUNED)
    missed = [name for name, rule in UNTUNED.items() if rule not in bad(folder / name)]
    assert len(missed) <= 1, missed
