from pathlib import Path

import pytest

from advisor.base.errors import UserError
from harness.rehearsal.trials import parse_asked, parse_layout
from tests.advisor.jobs import parallel

JOB = ("model=llama3_70b", "gpus=32xH100")


def test_defaults() -> None:
    asked = parse_asked(JOB)
    assert (asked.request.model, asked.request.gpus) == JOB_VALUES
    assert (asked.recompute, asked.stage, asked.device, asked.steps) == (("none",), None, "fake", 3)


JOB_VALUES = ("llama3_70b", "32xH100")


def test_compact_layout() -> None:
    assert parse_layout("tp4_pp4_vpp5_cp2_ep8_etp1_sp") == parallel(
        tp=4, pp=4, vpp=5, cp=2, ep=8, etp=1, sp=True
    )
    assert parse_layout("tp2_nosp")["sequence_parallel"] is False
    assert parse_layout("") == {}
    request = parse_asked([*JOB, "layout=tp4_pp2"]).request
    assert request.tensor_model_parallel_size == 4
    assert request.virtual_pipeline_model_parallel_size is None


@pytest.mark.parametrize("text", ["tp", "tp4pp4", "tp4_", "tp0", "xx3", "4tp"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(UserError, match="is not a degree"):
        parse_layout(text)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("none", "none"),
        (
            "[none,selective:core_attn,mlp,full:block:2]",
            "none selective:core_attn,mlp full:block:2",
        ),
        ("[none, 'selective:core_attn,mlp' ,none]", "none selective:core_attn,mlp"),
        ("selective:core_attn,mlp", "selective:core_attn,mlp"),
        ("corners", "none selective:mlp full:uniform:1"),
        ("full_uniform_1", "full:uniform:1"),
    ],
)
def test_settings(text: str, settings: str) -> None:
    assert parse_asked([*JOB, f"recompute={text}"]).recompute == tuple(settings.split())


def test_everything_else(tmp_path: Path) -> None:
    overrides = ("model.num_layers=8", "layout.use_distributed_optimizer=false")
    own = ("stage=3", "device=cpu", "steps=5", "name=x", "runs=y")
    asked = parse_asked([*JOB, *own, *overrides], tmp_path)
    assert (asked.stage, asked.device, asked.steps) == (3, "cpu", 5)
    assert (asked.name, asked.runs, asked.request.config_dir) == ("x", "y", tmp_path)
    assert asked.request.overrides == overrides


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpus=32xH100"], "model = (none): is missing"),
        (["model=llama3_70b"], "gpus = (none): is missing"),
        ([*JOB, "stages=0"], "did you mean stage"),
        ([*JOB, "stage"], "override = stage: is not KEY=VALUE"),
        ([*JOB, "stage=first"], "must be all or a number"),
        ([*JOB, "steps=0"], "must be at least 1"),
        ([*JOB, "steps=x"], "steps = x: is not an integer"),
        ([*JOB, "recompute=[]"], "is empty"),
        ([*JOB, "recompute=top"], "names no setting"),
    ],
)
def test_wrong_requests(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_asked(arguments)
    assert words in str(caught.value)
