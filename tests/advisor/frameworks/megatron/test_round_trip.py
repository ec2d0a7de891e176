"""Flags that are printed for a job are that job when they are read back next to its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.frameworks.megatron.setting import NONE
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.lint.request_from import read_job
from advisor.models.options import TokenDispatcher
from advisor.models.presets import model_names
from advisor.request.origin import changes
from advisor.request.request import Request
from advisor.request.resolve import resolve

LM, BRIDGE = Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE
STARTS = {LM: "torchrun pretrain_gpt.py", BRIDGE: "torchrun run_recipe.py"}
GPUS = "64xH100"


def asked(model: str, framework: Framework = LM, **said: Any) -> Job | None:
    """The job of a model; None where it is not built or no layout is settled."""
    shape = Request(model=model, gpus=GPUS, framework=framework, **said)
    try:
        found = resolve(shape)
    except UserError:
        return None
    return found.job(found.layout) if found.layout is not None else None


def differences(job: Job, model: str, folder: Path) -> dict[str, object]:
    """Fields of `job` that its command line does not give; of idle options the figures are those
    without."""
    script = folder / "train.sh"
    framework = Framework(str(job.config.framework))
    stack = parts_of(framework)
    words = (
        *stack.spelling.environment(NONE, job),
        STARTS[framework],
        stack.spelling.layout_flags(job),
    )
    script.write_text(" ".join(words) + "\n")
    given: dict[str, Any] = {"model": model, "gpus": GPUS}
    if framework == BRIDGE:  # what it leaves to the recipe
        given["seq_length"] = job.config.seq_length
        given["overrides"] = (f"model.attention_backend={job.model.attention_backend}",)
    read = resolve(read_job(str(script), given).request)
    assert read.layout is not None
    idle = {f"layout.{name}" for name in job.layout.idle_overlaps}
    if job.model.moe_token_dispatcher_type is not TokenDispatcher.FLEX:
        idle.add("model.moe_flex_dispatcher_backend")
    found = changes(job, read.job(read.layout))
    return {path: value for path, value in found.items() if path not in idle}


@pytest.mark.parametrize("precision", ["bf16", "fp8_current"])
@pytest.mark.parametrize("framework", [LM, BRIDGE])
def test_the_flags_of_every_preset_are_its_job(framework, precision, tmp_path) -> None:
    jobs = {model: asked(model, framework, precision=precision) for model in model_names()}
    reported = {model: job for model, job in jobs.items() if job is not None}
    assert len(reported) > 20
    assert {m: d for m, job in reported.items() if (d := differences(job, m, tmp_path))} == {}


def changed_jobs(model: str) -> Iterator[tuple[str, Job]]:
    job = asked(model, tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
    assert job is not None
    for change in parts_of(LM).jobs.job_changes(job):
        try:
            yield change.words, change.make()
        except UserError:
            continue


@pytest.mark.parametrize("model", ["llama3_70b", "gpt3_175b", "mixtral_8x7b", "deepseek_v3"])
def test_the_flags_of_what_a_search_changes_are_its_job(model: str, tmp_path: Path) -> None:
    found = {words: differences(job, model, tmp_path) for words, job in changed_jobs(model)}
    assert found
    assert {words: one for words, one in found.items() if one} == {}


@pytest.mark.parametrize("framework", [LM, BRIDGE])
@pytest.mark.parametrize(
    "override",
    [
        *("model.hidden_dropout=0.05", "model.attention_dropout=0.2"),
        *("model.mtp_num_layers=1", "job.main_grads_dtype=fp32"),
        *("job.fp8_recipe=tensorwise", "layout.virtual_pipeline_model_parallel_size=5"),
        "layout.num_layers_in_first_pipeline_stage=5",
    ],
)
def test_the_flags_of_what_is_given_are_its_job(override, framework, tmp_path) -> None:
    if "dropout" in override and framework == BRIDGE:
        pytest.skip("a recipe of Bridge has the dropouts of its model")
    said = (override, "job.use_precision_aware_optimizer=true", "job.exp_avg_dtype=bf16")
    job = asked("llama3_70b", framework, pipeline_model_parallel_size=4, overrides=said)
    assert job is not None
    assert differences(job, "llama3_70b", tmp_path) == {}
