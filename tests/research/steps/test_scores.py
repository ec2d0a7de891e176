"""Scores of targets whose predictions are given."""

from typing import Any

import pytest
from msgspec.structs import replace

from research.rows.simumax import simumax_targets
from research.rows.targets import Target
from research.steps import scores
from research.steps.scores import Scored, changes, choices

TARGET = replace(simumax_targets()[0], judged_only="")


def scored(name: str, measured: float, predicted: float, **more: Any) -> Scored:
    """A row of one question, with a family of its own."""
    target = replace(TARGET, name=name, family=name, seconds=measured, **more)
    return Scored(target, predicted, 0.1)


def test_a_row_lies_in_the_band_around_its_prediction() -> None:
    assert scored("a", 1.0, 1.05).is_inside
    assert scored("a", 1.0, 1.05).error == pytest.approx(0.05)
    assert not scored("a", 1.2, 1.0).is_inside


def test_regret_is_what_following_the_prediction_costs() -> None:
    """Alternatives that are predicted alike share it, and have no order."""
    (choice,) = choices([scored("a", 1.0, 3.0), scored("b", 1.5, 2.0), scored("c", 2.0, 4.0)])
    assert choice.regret == pytest.approx(0.5)
    assert choice.rank_correlation == pytest.approx(0.5)
    (choice,) = choices([scored("a", 1.0, 2.0), scored("b", 1.5, 2.0)])
    assert choice.regret == pytest.approx(0.25)
    (choice,) = choices([scored("a", 1.0, 2.0), scored("b", 1.5, 2.0), scored("c", 2.0, 2.0)])
    assert choice.rank_correlation == 0.0


def test_releases_of_one_setting_are_one_way() -> None:
    first, second = scored("a", 1.0, 2.0), scored("a", 1.2, 2.0)
    assert choices([first, second]) == ()
    assert changes([first, second]) == ()


def test_other_batches_are_other_questions_and_what_is_not_comparable_is_no_alternative() -> None:
    config = replace(TARGET.job.config, global_batch_size=2 * TARGET.job.config.global_batch_size)
    other = replace(TARGET.job, config=config)
    assert choices([scored("a", 1.0, 2.0), scored("b", 1.5, 2.0, job=other)]) == ()
    assert choices([scored("a", 1.0, 2.0), scored("b", 2.0, 1.0, comparable=False)]) == ()


def test_changes_are_right_where_the_sign_is() -> None:
    rows = [scored("a", 1.0, 1.0), scored("b", 1.1, 1.01), scored("c", 1.11, 0.9)]
    found = {change.second.name: change for change in changes(rows) if change.first.name == "a"}
    assert found["b"].is_right
    assert not found["c"].is_right
    assert found["b"].measured == pytest.approx(0.1)
    assert len(changes(rows)) == 2  # 1 % between b and c is noise


def test_the_command_prints_every_part(capsys, monkeypatch) -> None:
    monkeypatch.setattr(scores, "predict", lambda target, calibration: target.seconds * 1.01)
    assert scores.main(["simumax_b200", "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert "70B/12" in out
    assert "simumax_b200 llama3_70b" in out
    assert "choices: regret mean 0.0 %" in out.replace("%", " %")
    assert "12 rows" in out


def test_kinds_leave_out_what_is_judged_only() -> None:
    table = scores.family_table([scored("a", 1.0, 1.1), scored("b", 1.0, 3.0, judged_only="why")])
    (dense,) = [line for line in table if line.startswith("all dense")]
    assert dense.split()[2:] == ["1", "10.0%", "+10.0%", "+10.0%", "100%"]
    assert not [line for line in table if "experts" in line]


def test_an_unknown_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert scores.main(["simumax"]) == 2
    assert "use one of korthikanti2022" in capsys.readouterr().err


def test_targets_are_predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Target] = []
    monkeypatch.setattr(scores, "predict", lambda target, calibration: seen.append(target) or 1.0)
    assert len(list(scores.score([TARGET, TARGET]))) == len(seen) == 2
