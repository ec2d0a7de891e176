"""The line that advise prints for two rows makes just these jobs, for every framework."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.request.differences import HarnessLines
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.answer_parts import command_for
from harness.cli.main import main
from harness.planner.planning import find_target, machine_of
from harness.planner.run_request import compose

REQUESTS: list[dict[str, Any]] = [
    {"model": "llama3_70b", "gpus": "32xH100"},
    {"model": "llama3_8b", "gpus": "4xA100", "overrides": ("job.expandable_segments=false",)},
    {"model": "gemma3_27b", "gpus": "32xH100"},
    {"model": "qwen3_30b_a3b", "gpus": "16xH100", "precision": "fp8_current"},
    {"model": "kimi_k2", "gpus": "1024xGB200"},
    {"model": "llama3_8b", "gpus": "8xH100", "overrides": ("model.num_layers=16",)},
    {"model": "gpt2_xl", "gpus": "3xL40S"},
    *(
        {"model": "llama3_8b", "gpus": "8xH100", "framework": framework}
        for framework in ("torchtitan", "fsdp2", "deepspeed", "huggingface")
    ),
    *(
        {"model": "qwen3_8b", "gpus": "8xH100", "framework": framework, "overrides": overrides}
        for framework, overrides in (
            ("verl", ("rl.algorithm=grpo", "rl.engine=vllm", "rl.sleep_level=2")),
            ("trl", ("tuning.adapter=lora", "tuning.modules_to_save=lm_head")),
            ("fsdp2", ("samples.lengths=p50=900,max=8192", "head.implementation=liger")),
        )
    ),
]


def dry_run(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, command, *words = shlex.split(line)
    assert (program, command) == ("harness", "run")
    assert main(["run", "--dry-run", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("given", REQUESTS, ids=lambda given: " ".join(map(str, given.values())))
def test_the_line_is_the_job(given: dict[str, Any], capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    answer = advise(Request(**given, quick=True))
    first, last = answer.candidates[0].evaluation, answer.candidates[-1].evaluation
    specs = [first.setting.spec, last.setting.spec]
    line = HarnessLines(given["model"], answer.recipe).of(first.job, specs)
    config = compose(shlex.split(line)[2:])
    assert find_target(config, machine_of(config, dry_run=True)).job == first.job
    assert set(config.recompute.settings) == set(specs)
    shown = dry_run(line, capsys)
    assert all(f"  {spec}" in shown for spec in specs), "wide enough for whole settings"


@pytest.mark.parametrize("path", ["./my_model/base.yaml", "my model.yml"])
def test_the_line_of_a_models_file(path: str, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("base: llama3_8b\nnum_layers: 16\n")
    answer = advise(Request(model=path, gpus="8xH100", recompute=("none",), quick=True))
    line = HarnessLines(path).of(answer.candidates[0].evaluation.job, ["none"])
    assert f"runs/{Path(path).stem}-cuda-" in dry_run(line, capsys)


def test_a_split_as_text_goes_with_its_vpp() -> None:
    """Which is the recipe's, while its PP is not."""
    text = "layout.pipeline_model_parallel_layout=Et*4|(t*4|)*14tmL"
    degrees = {"tensor": 2, "pipeline": 4, "virtual_pipeline": 4, "expert": 64}
    given = {f"{name}_model_parallel_size": degree for name, degree in degrees.items()}
    given["expert_tensor_parallel_size"] = 1
    found = resolve(Request(model="deepseek_v3", gpus="2048xH100", overrides=(text,), **given))
    assert found.layout is not None
    job = found.job(found.layout)
    line = HarnessLines("deepseek_v3", "deepseek_v3_pretrain_1024gpu_h100_bf16").of(job, ["none"])
    config = compose(shlex.split(line)[2:])
    assert find_target(config, machine_of(config, dry_run=True)).job == job


def test_a_toss_between_layouts_comes_with_a_line_for_each(capsys) -> None:
    answer = advise(Request(model="gpt3_175b", gpus="64xA100", search=SearchScope.LAYOUT))
    assert answer.toss.beside == (
        "harness run differs from the rows: it sets job.create_attention_mask=false"
    )
    by_rank: Callable[[int], Any] = lambda rank: answer.candidates[rank - 1].evaluation  # noqa: E731
    lines = answer.toss.command.split(" && ")
    assert len(lines) == 2
    for rank, line in zip(answer.toss.ranks, lines, strict=True):
        assert by_rank(rank).setting.spec in dry_run(line, capsys)
        config = compose(shlex.split(line)[2:])
        assert find_target(config, machine_of(config, dry_run=True)).job == by_rank(rank).job


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (
            "job.use_precision_aware_optimizer=true",
            (
                "no harness command: the rows differ in job.use_precision_aware_optimizer, and "
                "harness run always sets job.use_precision_aware_optimizer=false"
            ),
        ),
        (
            "layout.cp_comm_type=all_gather",
            "layout.cp_comm_type = all_gather: must be p2p on the megatron_core backend",
        ),
    ],
)
def test_where_no_line_tells_two_rows_apart_it_says_why(option: str, why: str) -> None:
    requests = [
        Request(
            model="llama3_8b", gpus="8xH100", recompute=("none",), quick=True, overrides=overrides
        )
        for overrides in ((), (option,))
    ]
    answer, other = (advise(request) for request in requests)
    rows = answer.candidates[0], other.candidates[0]
    assert command_for(answer, rows, requests[0]) == ("", why)


def test_a_model_without_its_gpus() -> None:
    config = compose(["model=llama3_8b", "device=cuda", "recompute.settings=[none]"])
    with pytest.raises(UserError, match="gpus = \\(none\\): must be given with model=llama3_8b"):
        machine_of(config, dry_run=True)
