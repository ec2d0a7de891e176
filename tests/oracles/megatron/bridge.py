"""Megatron Bridge's own adapters (peft/ of its wheel), put on a model of the installed Megatron.

The wheel is unpacked next to the installed packages (Makefile), or where MEGATRON_BRIDGE says, and
not installed: of its packages those that its adapters import are read without what their
``__init__`` imports. Transformer Engine,
which lora_layers.py imports for the fused LoRA alone, is an empty module; Megatron's layers are
those of its local spec.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import torch

from advisor.job.tuning import ALL_LINEAR, Adapter, Tuning
from advisor.layers.megatron.adapters import CANONICAL, LINEAR_NAMES
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake import saved
from harness.backends.megatron_core.fake.without_gpu import fake_chunks, megatron_without_gpu

from ..recorded import measured
from . import peak

VARIABLE: Final = "MEGATRON_BRIDGE"
_ROOT: Final = Path(os.environ.get(VARIABLE) or Path(sys.prefix) / "megatron-bridge-0.6.2")
_PACKAGES: Final = ("", ".peft", ".utils")


def available() -> bool:
    """Whether the wheel is there."""
    return _ROOT.is_dir()


def _stand_ins() -> dict[str, ModuleType]:
    """Packages of the wheel without their own code, and what it imports that is not installed."""
    root = _ROOT / "megatron" / "bridge"
    found = {}
    for package in _PACKAGES:
        module = ModuleType(f"megatron.bridge{package}")
        module.__path__ = [str(root / package.removeprefix("."))]
        found[module.__name__] = module
    engine, ops = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch")
    engine.pytorch = ops  # type: ignore[attr-defined]
    ops.ops = ModuleType("ops")  # type: ignore[attr-defined]
    ops.ops.Sequential = object  # type: ignore[attr-defined]
    found |= {"transformer_engine": engine, "transformer_engine.pytorch": ops}
    common = ModuleType("megatron.bridge.utils.common_utils")
    common.print_rank_0 = lambda *_: None  # type: ignore[attr-defined]
    return {**found, common.__name__: common, **_newer_core()}


def _newer_core() -> dict[str, ModuleType]:
    """What a Megatron of Bridge's own time has, and no case here uses."""
    hybrid = ModuleType("megatron.core.models.hybrid.hybrid_block")
    hybrid.HybridStack = type("HybridStack", (torch.nn.Module,), {})  # type: ignore[attr-defined]
    return {hybrid.__name__.rpartition(".")[0]: ModuleType("hybrid"), hybrid.__name__: hybrid}


@cache
def _read(name: str) -> ModuleType:
    with patch.dict(sys.modules, _stand_ins()):
        found = import_module(f"megatron.bridge.peft.{name}")
        # classes that megatron-core names, empty, without Transformer Engine
        import_module("megatron.bridge.peft.utils").HAVE_TE = False  # type: ignore[attr-defined]
    return found


def adapters_of(tuning: Tuning) -> Any:
    """Bridge's configuration object of `tuning`; its default is all linear layers but those of
    latent attention."""
    targets, parts = tuning.target_modules, {part for both in CANONICAL.values() for part in both}
    values: dict[str, Any] = {"dim": tuning.rank, "dropout": tuning.dropout}
    values["target_modules"] = list(LINEAR_NAMES[:4] if ALL_LINEAR in targets else targets)
    if tuning.adapter is Adapter.DORA:
        return _read("dora").DoRA(**values)
    values["normalize_moe_lora"] = tuning.normalize_moe_lora
    if parts & {*targets}:
        return _read("canonical_lora").CanonicalLoRA(**values)
    again = tuning.sequence_parallel_input_regather
    return _read("lora").LoRA(sequence_parallel_input_regather=again, **values)


@contextmanager
def adapted(tuning: Tuning) -> Iterator[None]:
    """Inside, the oracle's models have the adapters of `tuning`."""

    def with_adapters(case: MegatronCase) -> list[Any]:
        chunks = fake_chunks(case)
        default = torch.get_default_dtype()
        try:
            adapters_of(tuning)(chunks, training=True)
        finally:
            torch.set_default_dtype(default)
        return chunks

    with (
        patch.dict(sys.modules, _newer_core()),
        patch.object(saved, "fake_chunks", with_adapters),
        patch.object(peak, "fake_chunks", with_adapters),
    ):
        yield


def saved_bytes(case: MegatronCase, tuning: Tuning) -> int:
    """Bytes that autograd keeps of a layer, or as they were recorded; of each adapter's scale, a
    number of Python's in host memory, nothing."""

    def live() -> tuple[int, ...]:
        with adapted(tuning):
            total, rows = saved.saved_bytes_per_layer(case)
        numbers = (row for row in rows if row.shape == () and row.dtype == "float64")
        return (total - sum(row.nbytes for row in numbers),)

    (found,) = measured("saved_bytes_with_adapters", case, tuning, by=live)
    return found


def activation_peak(case: MegatronCase, tuning: Tuning, stage: int) -> int:
    """As peak.activation_peak, or as it was recorded."""
    (found,) = measured(
        "peak_with_adapters",
        case,
        tuning,
        stage,
        by=lambda: (measured_peak(case, tuning, stage),),
    )
    return found


def measured_peak(case: MegatronCase, tuning: Tuning, stage: int) -> int:
    """The same, not recorded."""
    with adapted(tuning):
        return peak.activation_peak(case, stage)


def parameters(case: MegatronCase, tuning: Tuning) -> tuple[int, ...]:
    """Elements that are trained, and those that are frozen, on one rank."""

    def live() -> tuple[int, ...]:
        with adapted(tuning), megatron_without_gpu(case):
            (model,) = saved.fake_chunks(case)
            found = {True: 0, False: 0}
            for parameter in model.parameters():
                found[parameter.requires_grad] += parameter.numel()
        return found[True], found[False]

    return measured("parameters_with_adapters", case, tuning, by=live)
