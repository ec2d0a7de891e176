"""Every item of the shipped campaigns is a request that its command takes."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from advisor.hardware.catalogue import load_gpu
from harness.backends.megatron_core import translate
from harness.backends.native.unsupported import check
from harness.cli import calibrate, run
from harness.cli.main import MODULES
from harness.planner.device import Machine, find_machine
from harness.planner.planning import make_plan
from harness.planner.run_request import compose
from harness.rehearsal.trials import parse_asked, rehearsal_plan
from harness.trial.trial import Backend, Device, RunPlan, Workload
from research.campaign.execution import PROBE
from research.campaign.items import Item, load_campaign
from research.probes import __main__ as probe

GPUS = {
    "h100": ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
    "h200": ("NVIDIA H200", "H200-SXM-141GB"),
}
"""By campaign: what the driver calls its GPU, and the advisor."""
ITEMS = [(name, item) for name in ("cpu", *GPUS) for item in load_campaign(name).items]


def of(command: str) -> pytest.MarkDecorator:
    """Items of the GPUs' campaigns that are this command."""
    found = [(n, item) for n, item in ITEMS if n in GPUS and item.arguments[0] == command]
    return pytest.mark.parametrize(
        ("campaign", "item"), found, ids=[f"{n}-{i.name}" for n, i in found]
    )


def gpu(campaign: str) -> Machine:
    return Machine(device=Device.CUDA, gpu_names=GPUS[campaign][:1])


Planned = Callable[[Item, Machine], RunPlan]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """The plan of an item's run, made once."""
    out = tmp_path_factory.mktemp("campaign")
    (out / "calibrated").mkdir()

    @cache
    def plan(item: Item, machine: Machine) -> RunPlan:
        flags = run.parse(item.command(out)[1:])
        return make_plan(compose(flags.overrides, flags.config_dir), machine)

    return plan


@pytest.mark.parametrize("item", [i for _, i in ITEMS], ids=[f"{n}-{i.name}" for n, i in ITEMS])
def test_items_name_commands(item: Item) -> None:
    assert item.arguments[0] in (*MODULES, PROBE)
    assert item.why
    if item.arguments[0] == PROBE:
        words = list(item.arguments[1:])
        assert probe.chosen(words)
    if item.arguments[0] == "calibrate":
        assert calibrate.parse(list(item.arguments[1:])).budget_seconds < item.most_seconds


@of("rehearse")
def test_rehearsals_can_be_planned(campaign: str, item: Item, tmp_path: Path) -> None:
    """Each is given the memory of the GPU that it rehearses: an H200 is capped to it."""
    words = [word for word in item.command(tmp_path)[1:] if word != "device=cuda"]
    settings = rehearsal_plan(parse_asked(words)).settings
    assert settings
    assert {setting.trial.memory_bytes for setting in settings} == {load_gpu("H100").memory_bytes}


def _check(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backend runs it, on a machine that has what the item needs."""
    if workload.backend is Backend.NATIVE:
        check(workload)
        return
    monkeypatch.setattr(translate, "has_transformer_engine", lambda: True)
    assert translate.megatron_case(workload).transformer_impl == "transformer_engine"


@of("run")
def test_runs_can_be_planned(campaign: str, item: Item, planned: Planned, monkeypatch) -> None:
    plan = planned(item, gpu(campaign))
    assert plan.device_name == GPUS[campaign][1]
    for setting in plan.settings:
        assert not setting.skip, setting.spec
        _check(setting.trial.workload, monkeypatch)
        prediction = setting.trial.prediction
        assert prediction is not None
        if not setting.spec.startswith("op:"):
            assert prediction.step_time_seconds is not None


def test_runs_of_the_cpu_campaign_can_be_planned(planned: Planned) -> None:
    for item in load_campaign("cpu").items:
        if item.arguments[0] == "run":
            assert planned(item, find_machine("cpu")).settings


@pytest.mark.parametrize("name", GPUS)
def test_no_two_items_write_into_one_folder(name: str) -> None:
    """The plan in a folder is that of the latest: it would hide the other's trials."""
    words = [word for n, item in ITEMS if n == name for word in item.arguments]
    names = [word for word in words if word.startswith("name=")]
    with_trials = [i for n, i in ITEMS if n == name and i.arguments[0] in ("run", "rehearse")]
    assert len(set(names)) == len(names) == len(with_trials)


@of("run")
def test_cells_stand_where_their_reason_says(campaign: str, item: Item, planned: Planned) -> None:
    """`none` does not fit in the items called over, and fits in all others."""
    plan = planned(item, gpu(campaign))
    room = load_gpu(GPUS[campaign][1]).memory_bytes
    peaks = {s.spec: s.trial.prediction.peak_reserved_bytes for s in plan.settings}
    if peaks.get("none") is None:
        return
    assert (peaks["none"] > room) is item.name.endswith("_over")
    assert all(peak < room for spec, peak in peaks.items() if peak and spec.startswith("full:"))
