"""Campaign files: what is read, what is refused, what makes two items the same."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from research.campaign.items import Campaign, Item, load_campaign

ITEM = Item(name="a", arguments=("run", "runs={out}/runs"), why="to see")


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_folder_is_put_into_the_arguments() -> None:
    assert ITEM.command(Path("/x")) == ("run", "runs=/x/runs")


def test_an_item_is_the_same_while_its_arguments_and_machine_are() -> None:
    same = Item(name="b", arguments=ITEM.arguments, why="else", least_seconds=1.0)
    assert same.key("machine") == ITEM.key("machine")
    assert ITEM.key("other") != ITEM.key("machine")
    assert Item(name="a", arguments=("run",), why="").key("machine") != ITEM.key("machine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("items: [{name: a, arguments: [], why: x}]", "must name a command"),
        ("items: [{name: 'a b', arguments: [run], why: x}]", "must be letters"),
        ("items: [{name: a, arguments: [run], why: x, least_seconds: 0}]", "must be positive"),
        ("items: [{name: a, arguments: [run]}]", "why"),
        ("items: [{name: a, arguments: [run], why: x, wy: x}]", "did you mean why"),
        ("items: 3", "must be a list"),
    ],
)
def test_broken_files_are_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_campaign(write(tmp_path / "c.yaml", text))
    assert "\n" not in str(caught.value)


def test_a_name_stands_once() -> None:
    with pytest.raises(UserError, match="is given twice"):
        Campaign(items=(ITEM, ITEM))


def test_an_unknown_campaign_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="h200"):
        load_campaign("h20")


def test_items_are_picked_in_the_order_given() -> None:
    campaign = Campaign(items=tuple(replace(ITEM, name=name) for name in ("long", "main", "gpt")))
    assert [item.name for item in campaign.only(["gpt", "long"]).items] == ["gpt", "long"]
    with pytest.raises(UserError, match="did you mean long"):
        campaign.only(["main", "lon"])
    with pytest.raises(UserError, match="is given twice"):
        campaign.only(["main", "main"])


def test_the_first_run_is_one_that_trains_here() -> None:
    calibrate = Item(name="calibrate", arguments=("calibrate",), why="")
    dry = Item(name="dry", arguments=("run", "--dry-run"), why="")
    lacking = replace(ITEM, name="lacking", needs=("no_such_package",))
    assert Campaign(items=(calibrate, dry, lacking, ITEM)).first_run() == ITEM
    assert Campaign(items=(calibrate, dry, lacking)).first_run() is None
