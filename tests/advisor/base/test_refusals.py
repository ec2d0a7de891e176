"""Rules of configs/rules/jobs.json: conditions that are sides, and rows for several names."""

import pytest
from msgspec import Struct

from advisor.base import rule as rules
from advisor.base.errors import UserError
from advisor.base.rule import Rule, refusals, refuse


class Box(Struct):
    width: float = 3.0
    depth: int | None = None
    lid: str = "flat"
    tags: tuple[str, ...] = ("red",)
    open: bool = False


class BoxRule(Rule[[Box]], frozen=True, kw_only=True):
    names = ("box",)


def _refusal(monkeypatch, row, box, **more) -> str:
    monkeypatch.setattr(rules, "rows_of", lambda _: {"boxes": {"box.lid": row}})
    try:
        refuse(refusals(BoxRule, "boxes", **more).values(), box)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("sides", "legal", "refused"),
    [
        (["box.open"], Box(), Box(open=True)),
        (["not box.open"], Box(open=True), Box()),
        (["box.lid=round|oval"], Box(), Box(lid="oval")),
        (["box.lid!=flat|oval"], Box(lid="oval"), Box(lid="round")),
        (["box.depth!=None"], Box(), Box(depth=0)),
        (["box.depth<1"], Box(), Box(depth=0)),
        (["box.width>2.5"], Box(width=2.5), Box()),
        (["box.width<=2.5"], Box(), Box(width=2.5)),
        (["not box.width>=1 or not box.width<=2"], Box(width=2.0), Box(width=float("nan"))),
        (["box.tags:blue"], Box(), Box(tags=("red", "blue"))),
        (["box.open", "box.depth=2"], Box(open=True), Box(open=True, depth=2)),
    ],
)
def test_a_rule_applies_where_all_of_its_sides_hold(monkeypatch, sides, legal, refused) -> None:
    row = {"when": sides, "reason": "is no lid for {box.width}"}
    assert not _refusal(monkeypatch, row, legal)
    assert f"is no lid for {refused.width}" in _refusal(monkeypatch, row, refused)


def test_a_row_is_a_rule_for_each_of_its_names(monkeypatch) -> None:
    row = {"each": ["width", "depth"], "field": "box.{each}", "when": ["box.{each}<1"]}
    row["reason"] = "{each} must be at least 1"
    told = _refusal(monkeypatch, row, Box(depth=0))
    assert told == "box.depth = 0: depth must be at least 1"


def test_code_takes_the_name_first_and_given_narrows_it(monkeypatch) -> None:
    row = {"given": ["box.open"], "field": "box.{each}", "reason": "is {found}"}
    more = {
        "whens": {"box.lid": lambda name, box: getattr(box, name) and "odd"},
        "lists": {"box.lid": ("depth", "width")},
    }
    assert not _refusal(monkeypatch, row, Box(), **more)
    assert _refusal(monkeypatch, row, Box(open=True), **more) == "box.width = 3.0: is odd"
