"""A newcomer's ten questions to the explorer: what to click, twice at most, and where the answer
then stands. ``scripts/photograph_explorer.py`` takes the pictures; a test holds the clicks."""

from typing import Final, NamedTuple


class Question(NamedTuple):
    """clicks: XPath of each button, in order. answer: the heading's id of the card that answers,
    empty for the head of the page. says: words that stand there."""

    name: str
    clicks: tuple[str, ...]
    answer: str
    says: str


_ROW: Final = "//button[@class='row'][.='none']"
_TAB: Final = "//button[@role='tab'][2]"
_WARM_UP: Final = "(//button[.='Warm-up'] | //button[.='Whole step'])[1]"
_RUNNER: Final = "//button[@class='runner']"
QUESTIONS: Final = (
    Question("what_fits", (), "h-rows", "fits"),
    Question("why", (_ROW,), "h-memory", "kept activations"),
    Question("what_would_be_faster", (), "", "Faster"),
    Question("which_flags", (_TAB,), "h-flags", "recompute"),
    Question("how_sure", (), "h-sure", "step time ±"),
    Question("what_is_kept_in_a_layer", (), "h-layer", "kept"),
    Question("where_is_the_peak", (), "h-step", "Peak:"),
    Question("what_does_the_pipeline_do", (_WARM_UP,), "h-step", "bubble"),
    Question("which_two_to_measure", (_RUNNER,), "h-flags", "Measure both rows"),
    Question("how_to_gate_it", (), "h-flags", "harness compare"),
)
