"""Blocks of transformers with peft's adapters, frozen as peft freezes them, and with linear layers
of bitsandbytes."""

from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from advisor.base.dtypes import DType
from advisor.job.tuning import ALL_LINEAR, Adapter, StoredAs, Tuning

_TYPES = {DType.BF16: torch.bfloat16, DType.FP32: torch.float32}
_EXPERTS = "experts."


def with_adapters(made: nn.Module, tuning: Tuning) -> nn.Module:
    """`made` with the adapters of `tuning`, everything else frozen."""
    made.requires_grad_(False)
    if tuning.base_weights is not StoredAs.AS_LOADED:
        _quantize(made, tuning)
    experts = [name for name in tuning.target_modules if name.startswith(_EXPERTS)]
    modules = [name for name in tuning.target_modules if not name.startswith(_EXPERTS)]
    if ALL_LINEAR in modules:
        modules = [n for n, one in made.named_modules() if isinstance(one, nn.Linear | Conv1D)]
    config = LoraConfig(
        r=tuning.rank,
        lora_dropout=tuning.dropout,
        target_modules=modules,
        target_parameters=experts or None,
        use_dora=tuning.adapter is Adapter.DORA,
    )
    if tuning.base_weights is not StoredAs.AS_LOADED:
        setattr(made, f"is_loaded_in_{'4' if tuning.base_weights is StoredAs.NF4 else '8'}bit", 1)
    with patch.object(nn.Module, "to", lambda module, *_, **__: module):  # which swaps fake tensors
        inject_adapter_in_model(config, made)
    wanted = _TYPES[tuning.adapter_dtype or DType.BF16]
    for module in made.modules():
        for name, one in [*module.named_parameters(recurse=False)]:
            if one.requires_grad and one.dtype is not wanted:
                setattr(module, name, nn.Parameter(one.detach().to(wanted)))
    return made


def _quantize(made: nn.Module, tuning: Tuning) -> None:
    """Put bitsandbytes' linear layers in place of torch's."""
    bnb = pytest.importorskip("bitsandbytes").nn
    for name, old in [*made.named_modules()]:
        if not isinstance(old, nn.Linear):
            continue
        if tuning.base_weights is StoredAs.NF4:
            new = bnb.Linear4bit(
                *(old.in_features, old.out_features, old.bias is not None),
                compute_dtype=torch.bfloat16,
                compress_statistics=tuning.double_quantization,
                quant_type="nf4",
            )
        else:
            new = bnb.Linear8bitLt(
                old.in_features, old.out_features, old.bias is not None, has_fp16_weights=False
            )
        new = new.to("cpu")  # quantizes
        parent, _, last = name.rpartition(".")
        new.requires_grad_(False)
        setattr(made.get_submodule(parent), last, new)
