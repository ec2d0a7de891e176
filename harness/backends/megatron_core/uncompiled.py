"""Megatron imported without a compiler: for tensors that are on no GPU.

Megatron hands some of its functions to torch.compile as it is imported, which loads TorchInductor:
as long as all the rest. cpu.py runs what is inside of them anyway.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.base.patching import patched


def _as_it_is(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    """In place of torch.compile: marked as its result is, and run as written."""
    if function is None:
        return _as_it_is

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    run._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
    return run


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Modules of Megatron that are imported inside are not compiled, now or later."""
    import torch

    with patched(torch, "compile", _as_it_is):
        yield
