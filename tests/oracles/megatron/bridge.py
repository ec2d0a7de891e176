"""Megatron Bridge's own adapters (peft/ of its wheel), put on a model of the installed Megatron.

The wheel is unpacked where MEGATRON_BRIDGE says (make oracles), and not installed: of its packages
those that its adapters import are read without what their ``__init__`` imports. Transformer Engine,
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
from advisor.layers.megatron.adapters import CANONICAL
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.fake import saved
from harness.backends.megatron_core.fake.without_gpu import fake_chunks

from . import peak

VARIABLE: Final = "MEGATRON_BRIDGE"
_PACKAGES: Final = ("", ".peft", ".utils")
_DEFAULT: Final = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


def _stand_ins() -> dict[str, ModuleType]:
    """Packages of the wheel without their own code, and what it imports that is not installed."""
    root = Path(os.environ[VARIABLE]) / "megatron" / "bridge"
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
    """Bridge's configuration object of `tuning`."""
    kind = "lora"
    targets = list(tuning.target_modules)
    values: dict[str, Any] = {"dim": tuning.rank, "dropout": tuning.dropout}
    if ALL_LINEAR in targets:
        targets = _DEFAULT
    if tuning.adapter is Adapter.DORA:
        name = "DoRA"
        kind = "dora"
    elif {part for parts in CANONICAL.values() for part in parts} & {*targets}:
        name, kind = "CanonicalLoRA", "canonical_lora"
    else:
        name = "LoRA"
        values["sequence_parallel_input_regather"] = tuning.sequence_parallel_input_regather
    if name != "DoRA":
        values["normalize_moe_lora"] = tuning.normalize_moe_lora
    return getattr(_read(kind), name)(target_modules=targets, **values)


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
