"""`--search optimum`: what is first, what is proven of it, and what it leaves alone."""

import json
from itertools import chain, repeat
from typing import Any
from unittest.mock import Mock

import pytest

from advisor.answer.answer import SAME_TIME, Answer
from advisor.base.errors import UserError
from advisor.cli.main import main
from advisor.frameworks.registry import parts_of
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise

pytestmark = pytest.mark.slow

SPLIT = "layout.pipeline_model_parallel_layout"


def ask(search: SearchScope | None = SearchScope.OPTIMUM, **fields: Any) -> Answer:
    asked = {"model": "llama3_8b", "gpus": "8xH100", "quick": search is None, **fields}
    return advise(Request(**asked, search=search))


PIPELINE: dict[str, Any] = {
    "framework": "megatron_lm",
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 1,
    "seq_length": 8192,
    "global_batch_size": 64,
}


@pytest.mark.parametrize("framework", ["fsdp2", "deepspeed", "megatron_lm", "megatron_bridge"])
@pytest.mark.parametrize("budget", ["79GiB", "50GiB", "1GiB"])
def test_the_optimum_is_never_slower_than_the_usual_answer(framework: str, budget: str) -> None:
    usual = ask(None, framework=framework, memory_budget=budget)
    proven = ask(framework=framework, memory_budget=budget)
    optimum = proven.optimum
    assert usual.optimum is None
    assert (optimum.best is not None) >= usual.fits
    if optimum.best is None:
        assert optimum.bound_seconds is None
        return
    first = proven.candidates[0].evaluation
    assert optimum.best.spec == first.setting.spec
    assert optimum.bound_seconds <= first.step_time_seconds
    if usual.fits:
        assert first.step_time_seconds <= usual.candidates[0].evaluation.step_time_seconds
        assert optimum.gain >= 0


def test_of_what_takes_the_same_time_the_first_is_what_changes_least() -> None:
    """An offload of a quarter of the layers is as fast as none, to the last digits."""
    exchange = ("model.moe_token_dispatcher_type=flex", "model.moe_shared_expert_overlap=false")
    beside = ("layout.overlap_moe_expert_parallel_comm=true", "model.cross_entropy_fusion=te")
    answer = ask(model="deepseek_v2_lite", overrides=(*exchange, *beside))
    first, *_ = answer.candidates
    assert first.evaluation.setting.spec == "none"
    assert first.evaluation.job.config.micro_batch_size == 2
    assert answer.optimum.gap <= SAME_TIME


def test_every_row_is_legal_and_of_the_same_batch() -> None:
    answer = ask(**PIPELINE, memory_budget="40GiB")
    stack = parts_of("megatron_lm")
    assert answer.optimum.excluded_by_bound > 1000 * answer.optimum.evaluated
    for candidate in answer.candidates:
        evaluation = candidate.evaluation
        assert not stack.settings.check(evaluation.setting, evaluation.job)
        assert evaluation.job.config.global_batch_size == PIPELINE["global_batch_size"]


def test_a_search_that_is_stopped_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Mock(side_effect=chain([KeyboardInterrupt], repeat(True)))
    monkeypatch.setattr("advisor.search.optimum.branches.is_legal", once)
    assert ask(**PIPELINE, memory_budget="40GiB").optimum.excluded_by_bound == 0


def test_layers_and_micro_batch_that_are_not_given_are_decided() -> None:
    free = ask(**PIPELINE, memory_budget="40GiB")
    text = f"{SPLIT}=Et*8|t*8|t*8|t*8L"
    fixed = ask(**PIPELINE, memory_budget="40GiB", micro_batch_size=1, overrides=(text,))
    assert free.optimum is not None
    assert free.origin[SPLIT] == "searched"
    assert fixed.origin[SPLIT] == "given"
    assert [line for line in fixed.optimum.space if "splits" in line] == []
    assert "micro batch 1" in fixed.optimum.space
    layouts = {c.evaluation.job.layout.pipeline_model_parallel_layout for c in fixed.candidates}
    assert layouts == {text.partition("=")[2]}
    assert {c.evaluation.job.config.micro_batch_size for c in fixed.candidates} == {1}
    first, other = free.candidates[0].evaluation, fixed.candidates[0].evaluation
    assert first.step_time_seconds < other.step_time_seconds


def test_a_release_that_reads_no_text_keeps_its_split() -> None:
    answer = ask(**PIPELINE, framework_version="0.12", memory_budget="40GiB")
    assert not any("splits" in line for line in answer.optimum.space)
    assert all(
        not c.evaluation.job.layout.pipeline_model_parallel_layout for c in answer.candidates
    )


def test_the_framework_is_that_of_the_usual_answer() -> None:
    """A recipe of another framework of the family may be what the usual answer ends with."""
    answer = ask(model="llama4_scout_17b_16e", gpus="64xH100", memory_budget="40GiB")
    assert answer.optimum.best is not None


def test_a_setting_leaves_nothing_to_decide() -> None:
    with pytest.raises(UserError, match="cannot be combined with --search optimum"):
        ask(recompute=("none",))


WORDS = "--model llama3_8b --gpus 8xH100 --pp 4 --tp 1 --memory-budget 40GiB --search optimum"


def test_the_proof_stands_in_json_and_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS.split(), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    optimum, first = answer["optimum"], answer["candidates"][0]
    assert optimum["best"] == {"rank": 1, "spec": first["recompute"]["spec"]}
    assert optimum["gap"] == 0
    assert optimum["bound_seconds"] == first["step_time_seconds"]
    assert optimum["num_points"] == optimum["evaluated"] + optimum["excluded_by_bound"]
    assert main(WORDS.split()) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert (
        "Proven with predicted step times: no fitting setting of the space below is faster than row"
    ) in page
    assert "no release of Megatron has an option for it" in page
