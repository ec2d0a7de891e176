"""What a page says of measured runs, and of two rows to measure."""

from advisor.answer.answer import LearnedNote, LearnedTerm, Toss
from advisor.report.measuring import learned_words, toss_block
from advisor.report.text import Screen, printed

NOTE = LearnedNote(
    sources=("runs/a", "runs/b"),
    trials=12,
    left_out=("3 did not run on a GPU",),
    within="dense layers, bf16, TP 1 to 2",
    step_time={
        "base": LearnedTerm(mean=0.136, sigma=0.021, shipped_sigma=0.06),
        "recompute": LearnedTerm(mean=0.01, sigma=0.149, shipped_sigma=0.15),
    },
    memory={"activations": LearnedTerm(mean=-0.012, sigma=0.001, shipped_sigma=0.003)},
)


def test_only_what_runs_say_more_of_is_reported() -> None:
    assert learned_words(NOTE) == [
        "12 trials of runs/a, runs/b",
        "left out: 3 did not run on a GPU",
        "used for dense layers, bf16, TP 1 to 2",
        "step +13.6 ±2.1 %",
        "activations -1.2 ±0.1 %",
    ]


def test_a_job_outside_of_what_was_measured() -> None:
    note = LearnedNote(sources=("runs/a",), trials=1, outside="TP 8, measured 1 to 4")
    outside = "not used for this job: TP 8, measured 1 to 4"
    assert learned_words(note) == ["1 trial of runs/a", outside]


def test_a_toss_ends_in_a_command_for_each_job() -> None:
    toss = Toss(
        ranks=(1, 3),
        why="their times are 1.5 % apart",
        command="harness run recipe=a && harness run recipe=b",
        beside="harness run sets a=b",
    )
    assert printed(toss_block(toss), Screen(width=80)).splitlines() == [
        "Measure rows 1 and 3: their times are 1.5 % apart.",
        "  harness run recipe=a",
        "  harness run recipe=b",
        "  (harness run sets a=b)",
    ]
