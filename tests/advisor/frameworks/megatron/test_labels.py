"""The table of recompute labels against the releases and the kinds of checkpoint that they name."""

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron import revisions
from advisor.frameworks.megatron.labels import CHEAPEST_FIRST, LABELS, ORDER, Label, inside
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec

MODELS = ("llama3_8b", "mixtral_8x7b", "deepseek_v3", "qwen3_next_80b_a3b")


def test_every_label_of_a_release_has_its_row() -> None:
    assert set(ORDER) == set(revisions.known_recompute_modules())
    assert len(set(ORDER)) == len(ORDER)


def test_labels_are_ranked_once() -> None:
    ranks = [label.cost for label in LABELS if label.cost is not None]
    assert len(ranks) == len(set(ranks)) == len(CHEAPEST_FIRST)
    assert CHEAPEST_FIRST[0] == "layernorm"
    assert inside("moe") == ("moe_act", "shared_experts")


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label.name)
def test_runs_are_replayed_as_the_label_s_kind_of_checkpoint(label: Label) -> None:
    discards = revisions.checkpoint_kind(label.name) is revisions.CheckpointKind.OUTPUT_DISCARDING
    models: list[ModelSpec] = [load_model(name) for name in MODELS]
    runs = {
        run for model in models for kind in model.layer_kinds for run in label.replays(model, kind)
    }
    assert {run.discards_output for run in runs} <= {discards}
    unmodelled = label.name in ("gdp_in_proj", "gdp_qkv", "mhc")
    assert bool(runs) != unmodelled


def test_moe_act_replays_nothing_on_the_local_spec() -> None:
    """Which runs experts one by one, without a checkpoint of their activation."""
    mixtral = load_model("mixtral_8x7b")
    local = replace(mixtral, transformer_impl=TransformerImpl.LOCAL)
    (label,) = (label for label in LABELS if label.name == "moe_act")
    kind = mixtral.layer_kinds[0]
    assert list(label.replays(mixtral, kind))
    assert not list(label.replays(local, kind))
