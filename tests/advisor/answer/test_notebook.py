"""An advice in a notebook: what it shows, that it is well-formed, what a browser makes of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from advisor.answer.advice import Advice
from advisor.answer.answer import Answer
from advisor.report.plain_advice import plain_advice
from advisor.report.wording import verdict
from tests.harness.report.chromium import find_chromium


def shown(answer: Answer) -> tuple[Advice, str, ElementTree.Element]:
    advice = plain_advice(answer)
    text = advice._repr_html_()
    return advice, text, ElementTree.fromstring(text.replace("<br>", "<br/>"))


def rows(page: ElementTree.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]


def test_the_choice_the_table_and_the_flags(tight: Answer, layouts: Answer) -> None:
    advice, text, page = shown(tight)
    head, *body = rows(page)
    figures = ("peak GiB", "budget GiB", "step s", "tokens/s", "TFLOP/s/GPU")
    assert head == ["", "recompute", *figures, "overhead", "fits", "note"]
    assert rows(shown(layouts)[2])[0][1] == "layout"
    assert body[0][:5] == ["1", "selective:mlp", "66.0", "77.0", "9.300"]
    assert [row[1] for row in body] == [c.recompute.spec for c in advice.candidates]
    assert verdict(tight) in text
    assert advice.best.flags["megatron_lm"] in [pre.text for pre in page.iter("pre")]
    styles = [row.get("style", "") for row in page.iter("tr")][1:]
    candidates = advice.candidates
    assert ["bold" in style for style in styles] == [one is advice.best for one in candidates]
    assert ["opacity" in style for style in styles] == [not one.fits for one in candidates]


def test_a_column_that_says_nothing_is_left_out(tight: Answer) -> None:
    advice = plain_advice(tight)
    silent = replace(advice, candidates=tuple(replace(c, note="") for c in advice.candidates))
    page = ElementTree.fromstring(silent._repr_html_().replace("<br>", "<br/>"))
    assert {len(row) for row in rows(page)} == {9}
    assert "note" not in rows(page)[0]


def test_what_is_estimated_and_what_is_off_is_said(tight: Answer) -> None:
    first, *others = tight.candidates
    first = replace(first, evaluation=replace(first.evaluation, requests=None))
    note = replace(tight.calibration, known_error="4 runs were predicted too fast")
    changes = {"candidates": (first, *others), "calibration": note, "differences": ("a, not b",)}
    _, text, page = shown(replace(tight, **changes))
    assert [row[2] for row in rows(page)][1:3] == ["~66.0", "69.0"]
    for said in ("~ is an estimate", "error: 4 runs were", "from the 16-bit recipe: a, not b"):
        assert said in text
    assert "~" not in shown(tight)[1]


def test_rates_and_money_are_reported(tight: Answer) -> None:
    assert "14,100 tokens/s; 10^12 tokens take 631,000 GPU-hours." in shown(tight)[1]
    text = plain_advice(tight, price_per_gpu_hour=2.5)._repr_html_()
    assert "631,000 GPU-hours (1.58 M at 2.5 per GPU-hour)." in text


def test_folded_rows_are_left_out_and_other_changes_reported(tight: Answer) -> None:
    first, second, third, *_ = tight.candidates
    job = tight.job
    config = replace(job.config, expandable_segments=True)
    third = replace(third, evaluation=replace(third.evaluation, job=replace(job, config=config)))
    second = replace(second, same_as=1, folded=True)
    page = shown(replace(tight, candidates=(first, second, third)))[2]
    assert [row[:2] for row in rows(page)[1:]] == [
        ["1", "TP 4 PP 4 VPP 5 DP 2 mbs 1"],
        ["3", "TP 4 PP 4 VPP 5 DP 2 mbs 1 job.expandable_segments=true"],
    ]


def test_where_nothing_fits_no_row_is_the_choice(hopeless: Answer) -> None:
    _, text, page = shown(hopeless)
    assert "bold" not in "".join(row.get("style", "") for row in page.iter("tr"))
    for remedy in hopeless.remedies:
        assert remedy.change in text


def test_an_answer_without_candidates_is_shown(tight: Answer) -> None:
    _, text, page = shown(replace(tight, candidates=()))
    assert not rows(page)
    assert "No setting could be evaluated" in text


def test_every_text_is_escaped(tight: Answer) -> None:
    odd = replace(tight, assumptions=("<script>alert(1)</script> & more",))
    text = shown(odd)[1]
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in text


@pytest.mark.parametrize("width", [360, 1000])
def test_in_a_browser_it_stays_inside_its_cell(tight: Answer, tmp_path: Path, width: int) -> None:
    chromium = find_chromium(tmp_path)
    page = tmp_path / "cell.html"
    head = '<!DOCTYPE html><html><head><meta charset="utf-8"></head>'
    page.write_text(f"{head}<body><main>{shown(tight)[1]}</main></body></html>", encoding="utf-8")
    seen = chromium.ask(page, width)
    assert seen["scroll"] <= width
    assert seen["loaded"] == []
