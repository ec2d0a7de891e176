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


_ROWS: Final = "//section[@aria-labelledby='h-rows']"
_NONE: Final = f"{_ROWS}//button[@class='row'][.='none']"
_SMALLEST: Final = f"{_ROWS}//button[contains(., 'peak')]"
_FIRST: Final = f"({_ROWS}//button[@class='row'])[1]"
_TAB: Final = "//*[@aria-label='Framework']/button[2]"
QUESTIONS: Final = (
    Question("what_fits", (), "", " fits: "),
    Question("how_sure", (), "h-sure", "step time ±"),
    Question("what_is_fastest", (_SMALLEST, _FIRST), "h-faster", "Fastest of all"),
    Question("why_is_it_the_peak", (_NONE,), "h-memory", "Largest there: "),
    Question("where_is_the_peak", (), "h-step", "Peak: "),
    Question("which_flags", (_TAB,), "h-flags", "recompute"),
    Question("what_would_a_longer_sequence_cost", (), "h-seq", "Longest of these"),
    Question("how_many_gpus", (), "h-GPUs", "is the fewest that fits"),
    Question("what_is_kept_in_a_layer", (_NONE,), "h-layer", "layers: kept"),
    Question("what_to_measure_and_gate", (), "h-measure", "harness compare"),
)
