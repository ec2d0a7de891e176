"""The answer whose first sentence names another job: words, flags and data are of that job."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer, FastestFound, RankedEvaluation, SearchNote
from advisor.report.advice_page import page
from advisor.report.plain_advice import plain_advice
from advisor.report.setting_flags import (
    flags_report,
    framework_job_flags,
    is_written_out,
    job_outside_flags,
)
from advisor.report.text import plain_lines
from advisor.report.wording import found_notes, row_of, verdict
from advisor.request.origin import changes
from advisor.search.fastest_found import WORTH_A_CHANGE
from tests.advisor.conftest import JOB

WIDE = replace(
    JOB,
    config=replace(JOB.config, micro_batch_size=2),
    layout=replace(JOB.layout, virtual_pipeline_model_parallel_size=10),
)


@pytest.fixture
def found(roomy: Answer, make_evaluation) -> Answer:
    one = replace(make_evaluation("full:block:2", 20, job=WIDE), step_time_low_seconds=6.0)
    one = replace(one, time_seconds=replace(one.time_seconds, forward=0.5))
    best = RankedEvaluation(rank=1, evaluation=one)
    origin = {
        "job.micro_batch_size": "recipe some",
        "layout.virtual_pipeline_model_parallel_size": "recipe some",
    }
    fastest = FastestFound(candidate=best, changes=changes(WIDE, JOB), gain=0.25)
    return replace(roomy, fastest_found=fastest, origin=origin)


def test_the_first_sentences_name_both_and_what_was_lent(found: Answer) -> None:
    assert verdict(found) == (
        "Fastest as the job stands: none (65.0 of 77.0 GiB, 97 % likely), 8.00 s. Fastest found: "
        "full:block:2 (65.0 of 77.0 GiB, 97 % likely), 6.00 s (-25 %), which changes the recipe's "
        "VPP 5 to 10 and micro batch 1 to 2."
    )


def test_what_fits_only_with_changes_says_so(found: Answer, hopeless: Answer) -> None:
    fastest = replace(found.fastest_found, gain=None)
    said = verdict(replace(hopeless, fastest_found=fastest))
    assert said.startswith("Nothing fits as the job stands (")
    assert "Fastest found: full:block:2" in said
    assert plain_advice(replace(hopeless, fastest_found=fastest)).fits


def test_flags_and_plain_data_are_those_of_the_first_sentence(found: Answer) -> None:
    assert found.leading is row_of(found, 0) is found.fastest_found.candidate
    assert "--micro-batch-size 2" in flags_report(found)
    advice = plain_advice(found, explained=None)
    assert advice.best is advice.fastest_found
    assert advice.as_typed is advice.candidates[0]
    assert advice.fastest_found.changes["job.micro_batch_size"] == 2
    assert "--micro-batch-size 2" in advice.fastest_found.job_flags["megatron_lm"]


def test_what_a_gain_rests_on_and_what_a_bound_leaves_open(found: Answer) -> None:
    fastest = replace(found.fastest_found, rests_on=("DeepEP (2)",), without=found.candidates[0])
    open_ = SearchNote(evaluated=9, least_possible_seconds=2.0)
    rests, typed, left = found_notes(replace(found, fastest_found=fastest, search=open_))
    assert rests.startswith(
        "Few published runs show what these win: DeepEP (2). Fastest without it: none ("
    )
    assert "--as-typed" in typed
    assert left == "No layout can be faster than 2.00 s; this is 6.00 s: --search layout."
    near = replace(open_, least_possible_seconds=5.0)
    assert len(found_notes(replace(found, search=near))) == 1


def test_where_nothing_is_faster_the_choice_says_so(roomy: Answer) -> None:
    said = verdict(replace(roomy, search=SearchNote(evaluated=9)))
    near = f"Nothing more than {WORTH_A_CHANGE * 100:.0f} % faster was found near the job."
    assert said == f"{verdict(roomy)} {near}"


def test_a_recipe_s_framework_is_told_the_changes_alone(found: Answer) -> None:
    ours = replace(found, recipe_framework="megatron_bridge", recipe="some")
    one = found.fastest_found.candidate.evaluation
    said = framework_job_flags(ours, one, "megatron_bridge").split()
    assert said[:2] == ["model.virtual_pipeline_model_parallel_size=10", "train.micro_batch_size=2"]
    assert not any("tensor_model_parallel_size" in word for word in said)
    comment = job_outside_flags(ours, one, "megatron_bridge", with_layout=False)
    assert comment == "on top of recipe some"
    assert is_written_out(replace(ours, recipe_framework="megatron_lm"), "megatron_lm")


def test_notes_of_what_was_found_stand_on_the_page(found: Answer) -> None:
    marked = replace(found.fastest_found.candidate, notes=("needs this",))
    fastest = replace(found.fastest_found, candidate=marked)
    shown = "\n".join(plain_lines(page(replace(found, fastest_found=fastest)), 100))
    assert "\nfound  needs this\n" in shown
