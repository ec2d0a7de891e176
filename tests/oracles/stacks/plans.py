"""A plan of blocks as `advise` writes it, on blocks of torchtitan and transformers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from advisor.frameworks.torch.optimum.plan_file import plan_file
from advisor.frameworks.torch.setting import TorchSetting
from advisor.layers.shape import RankShape

from . import fsdp
from .meter import LiveBytes


def written_plan(setting: TorchSetting, shape: RankShape) -> dict[str, Any]:
    """The names of the module that `--format file` writes."""
    found: dict[str, Any] = {"__name__": "recompute_plan"}
    exec(plan_file(setting, shape), found)
    return found


class Row(nn.Module):
    """Blocks one after another, wrapped by `apply_plan`."""

    def __init__(
        self, blocks: list[nn.Module], rest: tuple[Any, ...], apply_plan: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        apply_plan(self.layers)
        self._rest = rest

    def forward(self, hidden: Any, *_: Any, **named: Any) -> Any:
        for block in self.layers:
            out = block(hidden, *self._rest, **named)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden


class DeviceBytes(LiveBytes):
    """As LiveBytes, except what a plan has on the host: one device stands for both here."""

    copying = False

    def _note(self, tensor: torch.Tensor) -> None:
        if not DeviceBytes.copying:
            super()._note(tensor)


@contextmanager
def with_host(plan: dict[str, Any]) -> Iterator[None]:
    """Inside, steps of stacks.fsdp do not count what `plan` copies to the host."""
    to_host = plan["to_host"]

    def uncounted(tensor: torch.Tensor) -> Any:
        DeviceBytes.copying = True
        try:
            return to_host(tensor)
        finally:
            DeviceBytes.copying = False

    plan["to_host"] = uncounted
    with patch.object(fsdp, "LiveBytes", DeviceBytes):
        yield
