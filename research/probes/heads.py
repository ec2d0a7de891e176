"""Output layers with their log-probabilities or loss over Qwen3's vocabulary, each by the code of
its package: bytes kept from forward to backward, the peaks of both, and seconds.

Bytes are those next to the weight, the labels and the leaf that the hidden states are copied from;
hidden states and all gradients are included (as in tests/oracles/heads). Logits are random and
flat, so that cut_cross_entropy passes over nearly all of its gradient: its backward is as fast as
it can be. On a CPU Triton's kernels write nothing, and the seconds mean nothing.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from types import ModuleType
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from advisor.base.errors import UserError
from advisor.hardware.calibration import load_calibration
from advisor.layers.operators import Module
from advisor.layers.transformer import head_groups
from advisor.memory.liveness import footprint
from advisor.models.presets import load_model
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.time.roofline import backward_seconds, forward_seconds
from harness.measure.memory import StorageMeter
from harness.measure.session import CUDA_GAUGE, Gauge, meter_gauge
from harness.measure.timing import stopwatch
from harness.trial.trial import Device
from research.probes.probe_case import Case, Figures

RUNS: Final = 4
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""Of hidden states [1, tokens, hidden_size], weight [vocabulary, hidden_size], labels [1, tokens]:
what has a gradient."""


def transformers(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Whole logits, which its loss copies to fp32."""
    loss = package("transformers.loss.loss_utils").ForCausalLMLoss
    logits = F.linear(hidden, weight)
    return (loss(logits, labels, vocab_size=len(weight)),)


def trl_logits(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Whole logits in 16 bits, one kernel."""
    kernel = inside("trl.kernels.logprob_entropy").selective_log_softmax_and_entropy
    return (kernel(F.linear(hidden, weight), labels)[0],)


def trl(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Tiles of tokens and vocabulary; positions with a label are copied out, here all."""
    function = inside("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    stand_in("trl.trainer.utils", maybe_gather_lm_head_ctx=lambda *_: nullcontext())
    at = (labels >= 0).nonzero().unbind(1)
    given = (hidden[at], weight, None, labels[at], 1.0, 32768, None, 1.0, ())
    return (function.apply(*given)[0],)


def liger(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Chunks of tokens, whose gradients the forward makes."""
    ops = package("liger_kernel.ops.fused_linear_cross_entropy")
    rows = hidden.flatten(0, 1)
    given = (rows, weight, labels.flatten())
    return (ops.LigerFusedLinearCrossEntropyFunction.apply(*given)[0],)


def verl_triton(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """No logits in the forward, slices of the vocabulary in the backward; the entropy with them."""
    stand_in(
        "verl.utils.device",
        is_cuda_available=torch.cuda.is_available(),
        get_device_capability=torch.cuda.get_device_capability,
        get_device_name=lambda: "cuda",
        get_torch_device=lambda: torch.cuda,
    )
    kernel = inside("verl.utils.kernel.linear_cross_entropy").linear_cross_entropy
    return tuple(kernel(hidden, weight, labels, 1.0, "none"))


def cut_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """No logits at all."""
    cross_entropy = package("cut_cross_entropy").linear_cross_entropy
    return (cross_entropy(hidden, weight, labels),)


_CASES: Final[dict[str, tuple[Head, ...]]] = {
    "usual": (transformers, liger, trl_logits, trl),
    "no_logits": (verl_triton, cut_cross_entropy),
}
_WHY: Final = "heads decide the memory of RL trainers, and were run on fake tensors alone"


def cases(tiny: bool) -> tuple[Case, ...]:
    """16,384 tokens of Qwen3-8B; a head that fails is an `…_error` among the figures."""
    tokens, model, vocabulary = (256, "qwen3_0.6b", 8192) if tiny else (16384, "qwen3_8b", 151936)
    device = Device.CPU if tiny else Device.CUDA
    width = load_model(model).hidden_size
    return tuple(
        Case(
            name=f"{name}_t{tokens}",
            why=_WHY,
            predict=partial(predicted, heads, tokens, model, vocabulary),
            measure=partial(measured, heads, (tokens, width, vocabulary), device),
            seconds=150.0,
            variables={"TORCHINDUCTOR_COMPILE_THREADS": "1"},  # no pool of compilers to start
        )
        for name, heads in _CASES.items()
    )


def predicted(heads: tuple[Head, ...], tokens: int, model: str, vocabulary: int) -> Figures:
    """Of the head's operators in a job of Qwen3 under huggingface on one H200."""
    found: dict[str, Any] = {}
    for head in heads:
        resolved = resolve(
            Request(
                model=model,
                gpus="1xH200",
                framework="huggingface",
                seq_length=tokens,
                micro_batch_size=1,
                global_batch_size=1,
                overrides=(
                    f"head.implementation={head.__name__}",
                    f"model.vocab_size={vocabulary}",
                ),
            )
        )
        assert resolved.layout is not None
        job = resolved.job(resolved.layout)
        evaluator = Evaluator(job, load_calibration(job.gpu))
        every = (one for _, group in head_groups(evaluator.shape) for one in group)
        operators = tuple(one for one in every if one.module is not Module.FINAL_LAYERNORM)
        needs, rates = footprint(operators, ()), (evaluator.rates.machine, evaluator.rates.network)
        found |= {
            f"{head.__name__}_kept_bytes": needs.kept,
            f"{head.__name__}_forward_bytes": needs.forward.num_bytes,
            f"{head.__name__}_backward_bytes": needs.backward.num_bytes,
            f"{head.__name__}_forward_seconds": sum(
                forward_seconds(one, *rates).compute for one in operators
            ),
            f"{head.__name__}_backward_seconds": sum(
                backward_seconds(one, *rates).compute for one in operators
            ),
        }
    return found


def measured(heads: tuple[Head, ...], size: tuple[int, int, int], device: Device) -> Figures:
    """Each head by itself; what one raises is its error."""
    if device is Device.CPU and find_spec("triton") is not None:
        jit = package("triton.runtime.jit")
        jit.JITFunction.run = lambda *_, **__: None
    found: dict[str, Any] = {}
    for head in heads:
        try:
            figures = _measured(head, size, device)
        except (Exception, torch.OutOfMemoryError) as error:
            figures = {"error": f"{type(error).__name__}: {error}"[:600]}
        found |= {f"{head.__name__}_{name}": value for name, value in figures.items()}
    if not any(name.endswith("_bytes") for name in found):
        raise UserError("heads", str(found), "all failed")
    return found


def _measured(head: Head, size: tuple[int, int, int], device: Device) -> dict[str, Any]:
    """The first run compiles, the second counts bytes, the others take the time."""
    tokens, width, vocabulary = size
    with torch.device(device.value):
        leaf = torch.randn(1, tokens, width, dtype=torch.bfloat16).requires_grad_()
        weight = torch.randn(vocabulary, width, dtype=torch.bfloat16).mul_(0.02).requires_grad_()
        labels = torch.randint(vocabulary, (1, tokens))
    given = (head, leaf, weight, labels)
    _backward(_forward(*given), leaf, weight)
    with _gauge(device) as gauge:
        gauge.restart()
        before = gauge.peak()
        edges, grads = _forward(*given)
        forward = gauge.peak() - before
        gauge.restart()
        kept = gauge.peak() - before - sum(one.nbytes for one in grads)
        _backward((edges, grads), leaf, weight)
        back = gauge.peak() - before
    watch, runs = stopwatch(device), []
    for _ in range(RUNS):
        watch.mark()
        ready = _forward(*given)
        watch.mark()
        _backward(ready, leaf, weight)
        watch.mark()
        runs.append(watch.laps())
    return {
        "kept_bytes": kept,
        "forward_bytes": forward,
        "backward_bytes": back,
        "forward_seconds": median(there for there, _ in runs),
        "backward_seconds": median(back for _, back in runs),
    }


Ready = tuple[tuple[GradientEdge, ...], tuple[Tensor, ...]]
"""Where the backward begins, and the gradients that it begins with."""


def _forward(head: Head, leaf: Tensor, weight: Tensor, labels: Tensor) -> Ready:
    arrived: Any = _Arrives.apply(leaf)  # type: ignore[no-untyped-call]
    outputs = head(arrived, weight, labels)
    grads = tuple(torch.ones_like(one) for one in outputs)
    return tuple(map(get_gradient_edge, outputs)), grads


def _backward(ready: Ready, *leaves: Tensor) -> None:
    torch.autograd.backward(*ready)
    for one in leaves:
        one.grad = None


class _Arrives(torch.autograd.Function):
    """The hidden states as a tensor of their own, whose gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


@contextmanager
def _gauge(device: Device) -> Iterator[Gauge]:
    """Of the allocator, or of storages."""
    if device is Device.CUDA:
        yield CUDA_GAUGE
        return
    meter = StorageMeter()
    meter.count_existing()
    with meter.measuring():
        yield meter_gauge(meter)


def package(name: str) -> Any:
    """The module; UserError where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(name, "", "is not installed") from error


def inside(name: str) -> Any:
    """A module of a package whose own imports (of a whole trainer) are not run."""
    top, *parts = name.split(".")[:-1]
    for depth in range(len(parts) + 1):
        bare(top, *parts[:depth])
    return package(name)


def stand_in(name: str, **values: Any) -> None:
    """What a module of a package would say, in its place."""
    module = ModuleType(name)
    vars(module).update(values)
    *parents, last = name.split(".")
    for depth in range(len(parents)):
        bare(*parents[: depth + 1])
    sys.modules[name] = module
    setattr(sys.modules[".".join(parents)], last, module)


def bare(*parts: str) -> None:
    """A package as its folder alone."""
    name = ".".join(parts)
    if name in sys.modules:
        return
    found = find_spec(parts[0]) if len(parts) == 1 else None
    if len(parts) == 1 and (found is None or found.submodule_search_locations is None):
        raise UserError(name, "", "is not installed")
    module: Any = ModuleType(name)
    if found is not None:
        module.__path__ = list(found.submodule_search_locations or ())
    else:
        above: Any = sys.modules[".".join(parts[:-1])]
        module.__path__ = [f"{path}/{parts[-1]}" for path in above.__path__]
    sys.modules[name] = module
