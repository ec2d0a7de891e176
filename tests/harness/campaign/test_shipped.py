"""Every item of the shipped campaigns is a request that its command takes."""

from pathlib import Path

import pytest

from harness.backends.native.limits import check
from harness.campaign.plan import Item, load_campaign
from harness.cli import MODULES
from harness.commands import calibrate, run
from harness.config import compose
from harness.device import Machine, find_machine
from harness.plan import RunPlan
from harness.planning import make_plan
from harness.rehearsal.asked import parse_asked
from harness.rehearsal.planned import plan_rehearsal
from harness.trial import Device

H200 = Machine(device=Device.CUDA, gpu_names=("NVIDIA H200",))
ITEMS = [(name, item) for name in ("cpu", "h200") for item in load_campaign(name).items]
RUNS = [item for name, item in ITEMS if name == "h200" and item.arguments[0] == "run"]
REHEARSALS = [item for name, item in ITEMS if name == "h200" and item.arguments[0] == "rehearse"]
ROOM = 139.8 * 2**30
"""What torch sees of an H200 (configs/hardware/H200-SXM-141GB.yaml)."""


def planned(item: Item, out: Path, machine: Machine) -> RunPlan:
    (out / "calibrated").mkdir(exist_ok=True)
    flags = run.parse(item.command(out)[1:])
    return make_plan(compose(flags.overrides, flags.config_dir), machine)


@pytest.mark.parametrize("item", [i for _, i in ITEMS], ids=[f"{n}-{i.name}" for n, i in ITEMS])
def test_items_name_commands(item: Item) -> None:
    assert item.arguments[0] in MODULES
    assert item.why
    if item.arguments[0] == "calibrate":
        assert calibrate.parse(list(item.arguments[1:])).budget_seconds < item.most_seconds


@pytest.mark.parametrize("item", REHEARSALS, ids=[item.name for item in REHEARSALS])
def test_rehearsals_can_be_planned(item: Item, tmp_path: Path) -> None:
    words = [word for word in item.command(tmp_path)[1:] if word != "device=cuda"]
    assert plan_rehearsal(parse_asked(words)).settings


@pytest.mark.parametrize("item", RUNS, ids=[item.name for item in RUNS])
def test_runs_can_be_planned_on_an_h200(item: Item, tmp_path: Path) -> None:
    plan = planned(item, tmp_path, H200)
    assert plan.device_name == "H200-SXM-141GB"
    for setting in plan.settings:
        assert not setting.skip, setting.spec
        check(setting.trial.workload, transformer_engine=bool(item.needs))
        prediction = setting.trial.prediction
        assert prediction is not None
        if not setting.spec.startswith("op:"):
            assert prediction.step_time_seconds is not None


def test_runs_of_the_cpu_campaign_can_be_planned(tmp_path: Path) -> None:
    for item in load_campaign("cpu").items:
        if item.arguments[0] == "run":
            assert planned(item, tmp_path, find_machine("cpu")).settings


@pytest.mark.parametrize("item", RUNS, ids=[item.name for item in RUNS])
def test_cells_stand_where_their_reason_says(item: Item, tmp_path: Path) -> None:
    """`none` does not fit in the items called over, and fits in all others."""
    plan = planned(item, tmp_path, H200)
    peaks = {s.spec: s.trial.prediction.peak_reserved_bytes for s in plan.settings}  # type: ignore[union-attr]
    if peaks.get("none") is None:
        return
    assert (peaks["none"] > ROOM) is item.name.endswith("_over")
    assert all(peak < ROOM for spec, peak in peaks.items() if peak and spec.startswith("full:"))
