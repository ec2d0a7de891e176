"""Adapters of Megatron Bridge: what is refused, printed and read."""

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.bridge import bridge_layout_overrides, left_to_bridge
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job, Optimizer
from advisor.job.layout import ParallelLayout
from advisor.job.tuning import Adapter, StoredAs, Tuning
from advisor.lint.target import lint_target
from advisor.models.presets import load_model
from tests.advisor.jobs import job_config, job_of

LORA = Tuning(adapter=Adapter.LORA, rank=16)
CANONICAL = replace(LORA, target_modules=("linear_q", "linear_k", "linear_v"))
BRIDGE = resolve_revision(Framework.MEGATRON_BRIDGE, "0.6")


def job_with(tuning: Tuning, model: str = "llama3_8b") -> Job:
    return job_of(model, ParallelLayout(), job_config(4096, 1, 8, tuning=tuning))


@pytest.mark.parametrize(
    ("framework", "changes", "reason"),
    [
        ("megatron_lm", {"tuning": LORA}, "no adapters; use --framework megatron_bridge"),
        (
            "megatron_bridge",
            {"tuning": replace(LORA, base_weights=StoredAs.NF4)},
            "is not in Megatron",
        ),
        ("megatron_bridge", {"tuning": replace(LORA, target_modules=("q_proj",))}, "has q_proj"),
        (
            "megatron_bridge",
            {"tuning": replace(LORA, adapter_dtype="float32")},
            "is not in Megatron",
        ),
        ("megatron_bridge", {"tuning": Tuning(num_trainable_layers=2)}, "is not in Megatron"),
        (
            "megatron_bridge",
            {"tuning": Tuning(adapter=Adapter.DORA, cut_by_tokens=True)},
            "is not in ms-swift",
        ),
        ("megatron_bridge", {"tuning": LORA, "optimizer": Optimizer.MUON}, "weights are frozen"),
    ],
)
def test_what_megatron_refuses(framework: str, changes: dict, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        parts_of(framework).jobs.check_options(job_config(4096, 1, 8, **changes))


def test_what_megatron_takes() -> None:
    takes = {
        "megatron_lm": (Tuning(), Tuning(freeze_output=True)),
        "megatron_swift": (LORA, replace(LORA, cut_by_tokens=True)),
        "megatron_bridge": (LORA, CANONICAL, replace(LORA, adapter=Adapter.DORA)),
        "nemo": (LORA,),
    }
    for framework, tunings in takes.items():
        for tuning in tunings:
            parts_of(framework).jobs.check_options(job_config(4096, 1, 8, tuning=tuning))


def test_ms_swift_has_adapters_of_its_own() -> None:
    jobs, model = parts_of("megatron_swift").jobs, load_model("llama3_8b")
    for tuning in (LORA, Tuning()):
        _, config = jobs.configure(model, job_config(4096, 1, 8, tuning=tuning), frozenset())
        assert config.tuning == replace(tuning, cut_by_tokens=tuning.has_adapter)
        words = parts_of("megatron_swift").spelling.layout_flags(job_with(tuning))
        assert ("--lora_rank 16" in words) == tuning.has_adapter
        assert "--target_modules linear_qkv" not in words


def test_a_remedy_keeps_the_own_tokens_alone() -> None:
    words = "tuning.sequence_parallel_input_regather=true"
    for framework, tuning, parallel, offered in (
        ("megatron_bridge", LORA, True, True),
        ("megatron_bridge", LORA, False, False),
        ("megatron_bridge", Tuning(), True, False),
        ("nemo", LORA, True, False),
    ):
        layout = ParallelLayout(tensor_model_parallel_size=2, sequence_parallel=parallel)
        job = job_of("llama3_8b", layout, job_config(4096, 1, 8, tuning=tuning))
        changes = list(parts_of(framework).jobs.job_changes(job))
        found = [change for change in changes if change.words == words]
        assert bool(found) == offered
        for change in found:
            assert change.make().config.tuning.sequence_parallel_input_regather


def test_overrides_name_the_linear_layers_of_the_model() -> None:
    """Bridge has no word for all of them."""
    for model, names in {
        "llama3_8b": "linear_qkv,linear_proj,linear_fc1,linear_fc2",
        "deepseek_v2_lite": (
            "linear_kv_down_proj,linear_q_proj,linear_kv_up_proj,linear_proj,linear_fc1,linear_fc2"
        ),
    }.items():
        words = shlex.split(bridge_layout_overrides(job_with(LORA, model), BRIDGE))
        assert [word for word in words if word.startswith("peft.")] == [
            "peft.dim=16",
            "peft.dropout=0",
            f"peft.target_modules=[{names}]",
        ]


def test_overrides_of_what_only_some_adapters_have() -> None:
    tuning = replace(LORA, share_expert_adapters=False, sequence_parallel_input_regather=True)
    words = bridge_layout_overrides(job_with(tuning), BRIDGE)
    assert "peft.share_expert_adapters=false" in words
    assert "peft.sequence_parallel_input_regather=true" in words
    assert "normalize_moe_lora" not in words
    assert "peft." not in bridge_layout_overrides(job_with(Tuning()), BRIDGE)


@pytest.mark.parametrize(
    ("tuning", "kind"),
    [(LORA, "LoRA"), (CANONICAL, "CanonicalLoRA"), (replace(LORA, adapter=Adapter.DORA), "DoRA")],
)
def test_which_recipe_takes_them(tuning: Tuning, kind: str) -> None:
    assert f"peft is {kind}(…)" in left_to_bridge(job_with(tuning))
    assert "peft" not in left_to_bridge(job_with(Tuning()))


START = "from megatron.bridge.recipes.llama import llama3_8b_peft_config as recipe\n"
MODEL = "model:\n  num_layers: 32\n  tensor_model_parallel_size: 2\n"
DEFAULT = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
CASES = {
    "call.py": (
        START + "cfg = recipe()\ncfg.model.num_layers = 32\n"
        "cfg.peft = LoRA(dim=8, alpha=16, dropout=0.1, target_modules=['*.linear_qkv'])\n",
        {"adapter": "lora", "rank": 8, "dropout": 0.1, "target_modules": ("linear_qkv",)},
    ),
    "attributes.py": (
        START + "cfg = recipe()\ncfg.model.num_layers = 32\n"
        "cfg.peft = default_peft_config('dora')\ncfg.peft.dim = 64\n",
        {"adapter": "dora", "rank": 64, "target_modules": DEFAULT},
    ),
    "canonical.py": (
        START + "cfg = recipe()\ncfg.model.num_layers = 32\ncfg.peft = CanonicalLoRA()\n",
        {
            "adapter": "lora",
            "rank": 32,
            "target_modules": (
                *("linear_q", "linear_k", "linear_v", "linear_fc1_gate", "linear_fc1_up"),
                *("linear_proj", "linear_fc2"),
            ),
        },
    ),
    "none.py": (START + "cfg = recipe()\ncfg.model.num_layers = 32\ncfg.peft = None\n", {}),
    "resolved.yaml": (
        MODEL + "peft:\n  _target_: megatron.bridge.peft.dora.DoRA\n  dim: 8\n  dropout: 0.1\n",
        {"adapter": "dora", "rank": 8, "dropout": 0.1, "target_modules": DEFAULT},
    ),
    "plain.yaml": (MODEL, {}),
    "recipe.sh": (
        "torchrun run_recipe.py --recipe llama3_8b_peft_config model.num_layers=32\n",
        {"adapter": "lora", "rank": 32, "target_modules": DEFAULT},
    ),
    "overrides.sh": (
        "torchrun run_recipe.py model.num_layers=32 peft.dim=4 'peft.target_modules=[linear_fc1]'"
        " peft.normalize_moe_lora=true peft.dropout=0.2\n",
        {
            "adapter": "lora",
            "rank": 4,
            "dropout": 0.2,
            "target_modules": ("linear_fc1",),
            "normalize_moe_lora": True,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recipes_peft_is_read(tmp_path: Path, name: str) -> None:
    text, means = CASES[name]
    (tmp_path / name).write_text(text)
    (checked,) = lint_target(str(tmp_path / name)).checked
    values = checked.configuration.values
    found = {path: one.value for path, one in values.items() if path.startswith("tuning.")}
    assert found == {f"tuning.{field}": value for field, value in means.items()}


def test_layernorm_recompute_next_to_adapters_is_an_error(tmp_path: Path) -> None:
    recomputes = "  recompute_granularity: selective\n  recompute_modules: [layernorm]\n"
    for more, rules in {
        "  transformer_impl: local\n": {"adapters_layernorm"},
        "  multi_latent_attention: true\n": {"adapters_layernorm_latent"},
        "  num_moe_experts: 8\n": set(),
    }.items():
        (tmp_path / "a.yaml").write_text(MODEL + recomputes + more + "peft:\n  dim: 8\n")
        found = {finding.rule for finding in lint_target(str(tmp_path / "a.yaml")).findings}
        assert {rule for rule in found if rule.startswith("adapters")} == rules
