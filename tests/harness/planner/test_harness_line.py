"""The line that advise prints for two rows makes just these jobs, for every framework."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.request.harness_line import harness_line
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise
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
]


def dry_run(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, command, *words = shlex.split(line)
    assert (program, command) == ("harness", "run")
    assert main(["run", "--dry-run", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("given", REQUESTS, ids=lambda given: " ".join(map(str, given.values())))
def test_the_line_is_the_job(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    answer = advise(Request(**given))
    first, last = answer.candidates[0].evaluation, answer.candidates[-1].evaluation
    specs = [first.setting.spec, last.setting.spec]
    line = harness_line(first.job, specs, given["model"], answer.recipe)
    config = compose(shlex.split(line)[2:])
    assert find_target(config, machine_of(config, dry_run=True)).job == first.job
    assert set(config.recompute.settings) == set(specs)
    shown = dry_run(line, capsys)
    assert all(f"  {spec}" in shown for spec in specs)


def test_a_toss_between_layouts_comes_with_a_line_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a split as text, whose VPP is the recipe's but not the PP."""
    request = Request(model="deepseek_v3", gpus="2048xH100", search=SearchScope.LAYOUT)
    answer = advise(request)
    assert answer.toss is not None
    assert "job.exp_avg_dtype=float32" in answer.toss.beside
    by_rank: Callable[[int], Any] = lambda rank: answer.candidates[rank - 1].evaluation  # noqa: E731
    lines = answer.toss.command.split(" && ")
    assert len(lines) == 2
    for rank, line in zip(answer.toss.ranks, lines, strict=True):
        assert by_rank(rank).setting.spec in dry_run(line, capsys)
        config = compose(shlex.split(line)[2:])
        assert find_target(config, machine_of(config, dry_run=True)).job == by_rank(rank).job


def test_no_line_measures_rows_apart_in_what_the_backend_has_not() -> None:
    answer = advise(Request(model="llama3_8b", gpus="8xH100", search=SearchScope.LAYOUT))
    assert answer.toss is not None
    assert answer.toss.command == ""
    assert answer.toss.beside == (
        "harness run takes both with job.use_precision_aware_optimizer=false, in which they differ"
    )


def test_a_model_without_its_gpus() -> None:
    config = compose(["model=llama3_8b", "device=cuda", "recompute.settings=[none]"])
    with pytest.raises(UserError, match=r"gpus = \(none\): is missing beside model=llama3_8b"):
        machine_of(config, dry_run=True)
