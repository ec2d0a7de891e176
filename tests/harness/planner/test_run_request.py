"""Hydra's overrides: what they give, and one line for what is wrong."""

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.request.recipes import experiment_names as presets
from harness.planner.run_request import RecomputeChoice, compose
from harness.trial.trial import Backend, MeasurementPlan
from tests.advisor.tables import tables

TABLES = tables(__file__)


def plain(value: object) -> bool:
    """Whether nothing of OmegaConf is in a value."""
    if isinstance(value, dict):
        return all(plain(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(plain(item) for item in value)
    return not type(value).__module__.startswith("omegaconf")


def test_alone_it_is_the_embedded_default() -> None:
    config = compose([])
    assert config.experiment_name == "tiny_cpu"
    assert config.recompute.settings == ("none", "selective:mlp", "full:uniform:1")
    assert (config.measure, config.backend) == (MeasurementPlan(), Backend.NATIVE)
    assert (config.device, config.gpus, config.name, config.runs) == ("auto", None, "", "runs")
    assert config.model == config.layout == config.job == {}
    assert plain(config.experiment)


def test_an_experiment_alone_takes_the_advisor_s_best() -> None:
    config = compose(["experiment=llama3_8b_1xh200"])
    assert config.experiment["model"] == "llama3_8b"
    assert config.recompute == RecomputeChoice(settings=(), top=3)
    named = compose(["experiment=llama3_8b_1xh200", "recompute=selective_mlp"])
    assert named.recompute.settings == ("selective:mlp",)


@pytest.mark.parametrize("name", [*presets()[:4], "llama3.2_1b_1xh100", "llama3.1_8b_2xh100"])
def test_presets_of_the_advisor_compose(name: str) -> None:
    assert compose([f"experiment={name}"]).experiment_name == name


def test_fields_in_the_advisor_s_names() -> None:
    settings = ("none", "selective:mlp", "selective:core_attn,mlp")
    asked = (
        "model.num_layers=2 layout.use_distributed_optimizer=false job.precision=fp16 "
        "measure.steps=4 measure.warmup_tolerance=0.1 recompute.top=7 gpus=2xH200 "
        "recompute.settings=[none,selective:mlp,'selective:core_attn,mlp'] name=x "
        "model.activation=geglu job.memory_budget_bytes=null"
    )
    config = compose(asked.split())
    assert config.model["num_layers"] == 2
    assert config.layout == {"use_distributed_optimizer": False}
    assert config.job == {"precision": Precision.FP16}
    assert (config.measure.steps, config.measure.warmup_tolerance) == (4, 0.1)
    assert config.recompute == RecomputeChoice(settings=settings, top=7)
    assert (config.gpus, config.name) == ("2xH200", "x")
    assert plain([config.model, config.layout, config.job])


@pytest.mark.parametrize(("overrides", "says"), TABLES["test_what_is_wrong_is_one_line"])
def test_what_is_wrong_is_one_line(overrides: Sequence[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        compose(overrides)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_values_mean_what_they_mean_to_advise() -> None:
    asked = (
        "name=17 launcher=slurm launcher.time=30 launcher.setup=[1,true] measure.steps='5' "
        "measure.memory_timeline=no measure.timeout_seconds=60 measure.seed=null runs=null"
    )
    config = compose(asked.split())
    assert (config.name, config.runs, config.launcher.time) == ("17", "runs", "30")
    assert config.launcher.setup == ("1", "True")
    assert config.measure == MeasurementPlan(steps=5, memory_timeline=False, timeout_seconds=60.0)


def test_folders_come_in_the_advisor_s_order(tmp_path, monkeypatch) -> None:
    odd = tmp_path / "it's, a [folder]"
    for folder, length in ((odd, 1), (tmp_path / "configs", 2)):
        (folder / "experiment").mkdir(parents=True)
        (folder / "experiment" / "own_1xh200.yaml").write_text(f"model: m\nseq_length: {length}\n")
    monkeypatch.chdir(tmp_path)
    assert compose(["experiment=own_1xh200"], odd).experiment["seq_length"] == 1
    assert compose(["experiment=own_1xh200"]).experiment["seq_length"] == 2
    assert compose(["experiment=llama3_8b_1xh200"], odd).experiment["model"] == "llama3_8b"
    with pytest.raises(UserError, match="is not a folder"):
        compose([], tmp_path / "absent")


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text("model: [\n")
    with pytest.raises(UserError) as error:
        compose(["experiment=bad"], tmp_path)
    assert "\n" not in str(error.value)
