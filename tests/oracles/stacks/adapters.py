"""Blocks of transformers with peft's adapters, frozen as peft freezes them."""

from unittest.mock import patch

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from advisor.base.dtypes import DType
from advisor.job.tuning import ALL_LINEAR, Adapter, Tuning

_TYPES = {DType.BF16: torch.bfloat16, DType.FP32: torch.float32}
_EXPERTS = "experts."


def with_adapters(made: nn.Module, tuning: Tuning) -> nn.Module:
    """`made` with the adapters of `tuning`, everything else frozen."""
    made.requires_grad_(False)
    if not tuning.has_adapter:
        return made
    experts = [name for name in tuning.target_modules if name.startswith(_EXPERTS)]
    modules = [name for name in tuning.target_modules if not name.startswith(_EXPERTS)]
    if ALL_LINEAR in modules:
        modules = [n for n, one in made.named_modules() if isinstance(one, nn.Linear | Conv1D)]
    config = LoraConfig(
        r=tuning.rank,
        lora_alpha=2 * tuning.rank,
        lora_dropout=tuning.dropout,
        target_modules=modules,
        target_parameters=experts or None,
        use_dora=tuning.adapter is Adapter.DORA,
    )
    with patch.object(nn.Module, "to", lambda module, *_, **__: module):
        inject_adapter_in_model(config, made)
    wanted = _TYPES[tuning.adapter_dtype or DType.BF16]
    for module in made.modules():
        for name, one in [*module.named_parameters(recurse=False)]:
            if one.requires_grad and one.dtype is not wanted:
                setattr(module, name, nn.Parameter(one.detach().to(wanted)))
    return made
