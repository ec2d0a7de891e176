"""The phases of a step have the same words in every picture and on the explorer page."""

import re
from importlib.resources import files

from advisor.answer.evaluation import TimeBreakdown
from advisor.report.figures.kit import PHASES


def test_the_explorer_says_the_words_of_the_pictures() -> None:
    script = files("advisor.explorer").joinpath("assets/data.js").read_text(encoding="utf-8")
    found = re.search(r"const TIME_WORDS = \{(.*?)\};", script, re.DOTALL)
    assert found
    words = dict(re.findall(r'(\w+): "([^"]+)"', found[1]))
    assert words == {phase: look.name for phase, look in PHASES.items()}
    assert set(words) == set(TimeBreakdown.__struct_fields__)
