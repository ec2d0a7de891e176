"""Megatron-LM: parse_args, validate_args and core_transformer_config_from_args of megatron.training.

Stand-ins: Transformer Engine is reported as present and new enough, its kernels as built, and the
GPU as a Blackwell; help texts are not read.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from io import StringIO
from itertools import takewhile
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from harness.backends.megatron_core import installed

OTHERS = (
    "--mock-data --tokenizer-type NullTokenizer --train-iters 1 --lr 1e-4 --no-persist-layer-norm"
)
KERNELS = {
    "models.common.embeddings.rope_utils": "fused_apply_rotary_pos_emb fused_apply_rotary_pos_emb_thd",
    "transformer.moe.moe_utils": "fused_permute fused_permute_with_probs fused_sort_chunks_by_index "
    "fused_sort_chunks_by_index_with_probs fused_unpermute",
}


@cache
def training() -> ModuleType:
    """megatron.training.arguments with the stand-ins in place."""
    installed.use_named()
    import torch

    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(
        name="NVIDIA B200", major=10, minor=0
    )
    with installed.nothing_compiled():
        from megatron.training import argument_utils, arguments, training
    argument_utils.ArgumentGroupFactory._get_field_docstrings = lambda *_: {}
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.") and hasattr(module, "is_te_min_version"):
            module.is_te_min_version = lambda *_, **__: True
    for name, kernels in KERNELS.items():
        for kernel in kernels.split():
            setattr(sys.modules[f"megatron.core.{name}"], kernel, print)
    optimizers = ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = type("FusedAdam", (), {"__init__": _fused_adam})
    sys.modules[optimizers.__name__] = optimizers
    return arguments


def _fused_adam(
    self: object,
    master_weight_dtype: str,
    exp_avg_dtype: str,
    exp_avg_sq_dtype: str,
    use_decoupled_grad: bool,
) -> None:
    """What is looked up of it."""


@contextmanager
def environment(words: list[str]) -> Iterator[list[str]]:
    """The number of GPUs and variables of a question, and what is left of it."""
    count, *rest = words
    given = list(takewhile(lambda word: re.match(r"[A-Z][A-Z0-9_]*=", word), rest))
    with patch.dict(os.environ, {"WORLD_SIZE": count, **dict(word.split("=", 1) for word in given)}):
        yield rest[len(given) :]


def accept(question: str) -> None:
    """Raise what the program raises on a line."""
    program = training()
    with environment(shlex.split(question)) as words, redirect_stdout(StringIO()):
        with patch.object(sys, "argv", ["pretrain_gpt.py", *OTHERS.split(), *words]):
            args = program.parse_args()
        program.validate_args(args)
        program.core_transformer_config_from_args(args)
        sys.modules["megatron.training.training"].get_megatron_optimizer_config(args)
