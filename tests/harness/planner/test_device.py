"""What this machine has, with the driver's answers faked."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.base.errors import UserError
from harness.planner import device
from harness.planner.device import Machine, find_machine, gpu_names, visible
from harness.trial.trial import Device

TWO = ("NVIDIA H200", "NVIDIA A100")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, TWO),
        ("", ()),
        ("-1", ()),
        ("1", TWO[1:]),
        ("1,0", TWO[::-1]),
        ("0,7,1", TWO[:1]),
        ("GPU-5ebe9f43", TWO[:1]),
        (" 0 , 1 ", TWO),
    ],
)
def test_what_cuda_visible_devices_leaves(mask: str | None, expected: tuple[str, ...]) -> None:
    assert visible(TWO, mask) == expected
    assert visible((), mask) == ()


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "gpu_names", lambda: TWO)
    assert find_machine() == Machine(device=Device.CUDA, gpu_names=TWO)
    assert find_machine("cpu") == Machine(device=Device.CPU)
    monkeypatch.setattr(device, "gpu_names", lambda: ())
    assert find_machine() == Machine(device=Device.CPU)
    with pytest.raises(UserError, match="device = cuda: the driver sees no GPU"):
        find_machine("cuda")


def test_another_device_is_one_line() -> None:
    with pytest.raises(UserError, match="device = tpu: must be one of auto, cuda, cpu"):
        find_machine("tpu")


def fake_smi(monkeypatch: pytest.MonkeyPatch, code: int, text: str) -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.CompletedProcess([], code, text, "")
        done.check_returncode()
        return done

    monkeypatch.setattr(subprocess, "run", run)


def test_nvidia_smi_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    fake_smi(monkeypatch, 0, "NVIDIA H200\nNVIDIA A100\n")
    assert gpu_names() == TWO
    fake_smi(monkeypatch, 9, "No devices were found")
    assert gpu_names() == ()


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    monkeypatch.setattr(device, "_QUERY", ("a-program-that-is-not-there",))
    assert gpu_names() == ()


class FakeNvml(SimpleNamespace):
    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        if self.broken == "init":
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.broken == "count":
            raise self.NVMLError
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return TWO[handle] if handle else TWO[handle].encode()


@pytest.mark.parametrize("broken", ["", "init", "count"])
def test_nvml(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml(broken=broken))
    fake_smi(monkeypatch, 0, "smi\n")
    assert gpu_names() == (("smi",) if broken else TWO)
