"""Which rows a page shows: folded ones, the front, and what it says of those that are left out."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.report.advice_page import page
from advisor.report.ranking_table import Rows
from advisor.report.text import plain_lines
from tests.advisor.conftest import JOB


@pytest.fixture
def crowded(make_advice, make_evaluation) -> Answer:
    """Row 2 runs like row 1, row 3 is beaten by it, row 4 is on the front, rows 5 to 16 too."""
    specs = [f"full:block:{n}" for n in range(1, 17)]
    answer: Answer = make_advice(*(make_evaluation(spec, 20) for spec in specs))
    marks = {2: {"same_as": 1, "folded": True}, 3: {"dominated_by": 1, "folded": True}}
    rows = tuple(replace(row, **marks.get(row.rank, {})) for row in answer.candidates)
    return replace(answer, candidates=rows)


def text_of(answer: Answer, rows: Rows = Rows()) -> str:  # noqa: B008
    return "\n".join(plain_lines(page(answer, rows=rows)))


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        (Rows(), [1, *range(4, 13)]),
        (Rows(kept=(3,)), [1, *range(3, 12)]),
        (Rows(top=4), [1, 2, 3, 4]),
        (Rows(front=True), [1, *range(4, 17)]),
        (Rows(front=True, top=3), [1, 2, 4]),
    ],
)
def test_rows_shown(crowded: Answer, rows: Rows, ranks: list[int]) -> None:
    assert [row.rank for row in rows.shown(crowded.candidates)] == ranks


def test_what_is_folded_is_counted_and_named(crowded: Answer) -> None:
    text = text_of(crowded)
    assert "full:block:3 " not in text
    assert "\n     same result: 2 full:block:2\n" in text
    assert (
        "hidden 1 no better than another row, 1 equal to another, 4 after the first 10: "
        "--top 16 shows all"
    ) in " ".join(text.split())
    assert "--explain 4 explains a row" in text


def test_all_rows_of_top_are_there_and_nothing_is_folded(crowded: Answer) -> None:
    text = text_of(crowded, Rows(top=16))
    assert all(f"\n {rank:>2}  full:block:{rank} " in text for rank in range(1, 17))
    assert "alike" not in text
    assert "hidden" not in text
    assert " rows: --top" not in text


def test_the_front_says_that_it_is_one(crowded: Answer) -> None:
    assert "Pareto front: 15 of 16 rows, 14 of them shown" in text_of(crowded, Rows(front=True))
    cut = text_of(crowded, Rows(front=True, top=3))
    assert "Pareto front: 15 of 16 rows, 3 of them shown, more with --top N" in cut


def test_the_overhead_names_the_row_that_it_is_over(make_advice, make_evaluation) -> None:
    answer = make_advice(make_evaluation("selective:mlp", 20, 2.0), make_evaluation("none", 30))
    assert "overhead  over" not in text_of(answer)
    assert "overhead  over the step time of none (row 2, not shown)" in text_of(answer, Rows(top=1))
    wider = replace(JOB, config=replace(JOB.config, micro_batch_size=2))
    several = make_advice(
        *(row.evaluation for row in answer.candidates), make_evaluation("none", 30, job=wider)
    )
    one = text_of(several, Rows(top=1))
    assert "overhead  over the step time of none on the same layout" in one


def test_a_full_bar_is_named_only_where_there_are_bars(crowded: Answer) -> None:
    wide, narrow = ("\n".join(plain_lines(page(crowded), width)) for width in (100, 60))
    assert ("█" in wide, "█" in narrow) == ("(full bar)" in wide, "(full bar)" in narrow)
    assert "█" in wide
    assert "█" not in narrow


def test_rows_say_what_no_column_says(make_advice, make_evaluation) -> None:
    usual = replace(JOB.config, expandable_segments=True)
    graphs = replace(JOB.config, optimizer_cpu_offload=True, use_precision_aware_optimizer=True)
    deeper = replace(JOB.layout, virtual_pipeline_model_parallel_size=10, data_parallel_size=2)
    jobs = (JOB, replace(JOB, config=graphs), replace(JOB, layout=deeper))
    answer = make_advice(*(make_evaluation("none", 20 - n, job=job) for n, job in enumerate(jobs)))
    answer = replace(answer, usual=replace(JOB, config=usual))
    lines = text_of(answer).splitlines()
    rows = [n for n, line in enumerate(lines) if line.startswith((" 1 ", " 2 ", " 3 "))]
    below = "     with job.use_precision_aware_optimizer=true job.optimizer_cpu_offload=true"
    assert lines[rows[1] + 1] == below
    assert (rows[1] - rows[0], rows[2] - rows[1]) == (1, 2)
    assert "all rows  with job.expandable_segments=false" in lines


def test_rows_alike_on_other_layouts_are_named_by_them(make_advice, make_evaluation) -> None:
    wider = replace(JOB, config=replace(JOB.config, micro_batch_size=2))
    answer = make_advice(
        make_evaluation("none", 20),
        make_evaluation("none", 20, job=wider),
        make_evaluation("selective:mlp", 20, job=wider),
    )
    first, *others = answer.candidates
    twins = (replace(row, same_as=1, folded=True) for row in others)
    text = text_of(replace(answer, candidates=(first, *twins)))
    assert "same result: 2 micro batch 2 · 3 micro batch 2 selective:mlp" in text
