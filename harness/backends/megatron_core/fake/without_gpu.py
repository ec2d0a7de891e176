"""Runs Megatron Core without a GPU: fake tensors, a fake process group, CUDA's byte behaviour. The
fake tensors are those of torch's meta device: shapes and storages with a size, no data. They need
no Python for most operations, which torch's FakeTensorMode does (four times as slow here). All
patches are undone on exit. What they must achieve: whatever device is named is the meta device;
CUDA's random states do not exist; dropout, RMSNorm and LayerNorm keep what they keep on a GPU; and
functions Megatron hands to torch.compile are one kernel on a GPU, so that only what they return (or
leave saved for the backward pass) takes memory.

Fake tensors have no values, so that nobody can say how many tokens an expert gets. Here every
expert gets as many as any other (what moe_router_force_load_balancing aims at). The patches stand
where Megatron reads values: masked_select, the sizes of all-to-alls, chunks and experts."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.optimizer import clip_grads
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.tensor_parallel import layers as tensor_parallel_layers
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import experts as megatron_experts
from megatron.core.transformer.moe import moe_utils, router, token_dispatcher
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch.utils._device import _device_constructors

from harness.backends.megatron_core import cpu, model, world
from harness.backends.megatron_core.case import MegatronCase
from harness.backends.megatron_core.cpu import CudaToCpu, KernelScope
from harness.backends.megatron_core.fake.gpu_kernels import REPLACEMENTS, FlashLikeAttention
from harness.backends.megatron_core.fake.meter import borrow

try:
    from megatron.core.transformer.moe import moe_logging
except ImportError:  # before 0.17
    moe_logging = None


class _Sizes(list[int]):
    """A list where Megatron has a tensor that it turns into a list."""

    def tolist(self) -> list[int]:
        return list(self)


def _even(total: int, parts: int) -> _Sizes:
    if total % parts:
        raise ValueError(f"{total} token rows: balanced routing needs a multiple of {parts}")
    return _Sizes([total // parts] * parts)


class _MaskedSelect(torch.autograd.Function):
    """torch's masked_select, which keeps its input and the mask, of a known number of elements."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(tensor, mask)
        return torch.empty(count, dtype=tensor.dtype, device=tensor.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        tensor, _ = ctx.saved_tensors
        return torch.empty_like(tensor), None, None


def routing_patches(case: MegatronCase) -> Iterator[Any]:
    """Patches under which a MoE layer runs on fake tensors, routing balanced."""
    keep = min(1.0, case.moe_expert_capacity_factor or 1.0)
    per_token = case.moe_router_topk / (case.num_moe_experts or 1)
    sequential = megatron_experts.SequentialMLP.forward

    def masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = int(mask.numel() * per_token * keep)
        if tensor.shape != mask.shape or not tensor.is_floating_point():
            return torch.empty(count, dtype=tensor.dtype, device=tensor.device)
        out: torch.Tensor = _MaskedSelect.apply(tensor, mask, count)  # type: ignore[no-untyped-call]
        return out

    def one_by_one(module: Any, tokens: Any, _: Any, probs: Any) -> Any:
        return sequential(module, tokens, _even(tokens.shape[0], module.num_local_experts), probs)

    yield patch.object(torch.Tensor, "masked_select", masked_select)
    yield from _dispatcher_patches(case, keep)
    yield patch.object(megatron_experts.SequentialMLP, "forward", one_by_one)
    yield patch.object(router, "sinkhorn", lambda cost: cost)  # its loop ends by its values
    if moe_logging is None:
        yield patch.object(moe_utils, "_MOE_LAYER_WISE_LOGGING_TRACKER", {})
    else:
        yield patch.object(moe_logging, "_MOE_METRICS_TRACKER", None)
    yield patch.object(moe_utils.MoEAuxLossAutoScaler, "main_loss_backward_scale", None)


def _dispatcher_patches(case: MegatronCase, keep: float) -> Iterator[Any]:
    """What an all-to-all sends and receives, of the part `keep` of the tokens."""
    per_token = case.moe_router_topk / (case.num_moe_experts or 1)
    permute = token_dispatcher.permute
    alltoall, sort = token_dispatcher.MoEAlltoAllTokenDispatcher, moe_utils.sort_chunks_by_idxs
    preprocess, to_cpu = alltoall.preprocess, token_dispatcher.maybe_move_tensor_to_cpu

    def balanced(dispatcher: Any, routing_map: torch.Tensor) -> Any:
        tokens = preprocess(dispatcher, routing_map)
        if dispatcher.drop_and_pad:
            return tokens
        routed = int(routing_map.size(0) * case.moe_router_topk * keep)
        dispatcher.num_out_tokens = routed
        if case.expert_ranks > 1:
            dispatcher.input_splits = _even(routed, case.expert_model_parallel_size)
            dispatcher.output_splits = _even(routed, case.expert_model_parallel_size)
            tp = case.expert_tensor_parallel_size
            dispatcher.output_splits_tp = _even(routed * tp, tp)
        return tokens

    def sort_chunks(tensor: Any, split_sizes: Any, sorted_idxs: Any, **more: Any) -> Any:
        chunks = split_sizes.numel()
        return sort(tensor, _even(tensor.shape[0], chunks), _Sizes(range(chunks)), **more)

    def on_cpu(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor if isinstance(tensor, _Sizes | int) else to_cpu(tensor)

    def permute_known(tokens: Any, routing_map: Any, *args: Any, **more: Any) -> Any:
        if not isinstance(more.get("num_out_tokens"), int):
            more["num_out_tokens"] = int(routing_map.numel() * per_token * keep)
        return permute(tokens, routing_map, *args, **more)

    yield patch.object(token_dispatcher, "permute", permute_known)
    yield patch.object(alltoall, "preprocess", balanced)
    yield patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", on_cpu)
    yield patch.object(token_dispatcher, "sort_chunks_by_idxs", sort_chunks)


META = torch.device("meta")
_MAKERS = _device_constructors()  # torch.empty, torch.arange, torch.tensor, ...


class CudaSemantics(CudaToCpu):
    """Whatever makes a tensor makes a fake one; what asks for values is replaced."""

    replacements: Mapping[Any, Callable[..., Any]] = {
        **CudaToCpu.replacements,
        torch.tensor: lambda *args, **given: torch.tensor(*args, **given).clone(),  # to be seen
        torch.Tensor.cpu: lambda tensor, *_, **__: tensor,
        **REPLACEMENTS,
        torch.Tensor.item: lambda tensor: 1.0,  # norms and scales: fake tensors have no values
    }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _MAKERS or (kwargs and kwargs.get("device") is not None):
            kwargs = {**(kwargs or {}), "device": META}
        return super().__torch_function__(func, types, args, kwargs)


class _NoWgradKernels:
    """Stands for apex's kernels that add a weight gradient into `main_grad` in place."""

    @staticmethod
    def wgrad_gemm_accum_fp32(*_: torch.Tensor) -> None: ...

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def _gather_own_object(gathered: list[Any], mine: Any, group: Any = None) -> None:
    """What the fake process group gives: every rank is like this one."""
    gathered[:] = [mine] * len(gathered)


class _Done:
    """Handle of a communication that takes no time."""

    def wait(self) -> None: ...


def _scale_kernel(chunk: int, flag: Any, lists: Any, scale: float) -> None:
    """TE's multi_tensor_scale: no temporaries."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source)


def _patches(kernel: KernelScope) -> Iterator[Any]:
    yield from cpu.patches(kernel)
    yield patch.object(torch.cuda, "current_device", lambda: META)
    optimizers = sys.modules["torch.optim.optimizer"]  # hidden behind a name of torch.optim's
    # devices of the fused optimizers; torch asks before it looks for a kernel
    yield patch.object(optimizers, "_get_fused_kernels_supported_devices", lambda: [META.type])
    # fake storages have no contents to copy
    yield patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage)
    yield patch.object(megatron_random, "_get_share_storage", lambda: borrow, create=True)
    yield patch.object(megatron_random, "_get_all_rng_states", lambda: (None,) * 3)
    yield patch.object(megatron_random, "_set_all_rng_states", lambda *_: None)
    yield patch.object(megatron_random.CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext())
    yield patch.object(torch.distributed, "all_gather_object", _gather_own_object)
    # coalesced collectives know no fake tensors
    yield patch.object(
        param_and_grad_buffer, "_coalescing_manager", lambda *_, **__: nullcontext(_Done())
    )
    # TE's multi_tensor_l2norm: no temporaries; the value does not matter
    yield patch.object(clip_grads, "l2_norm_impl", lambda *_: (torch.ones(1), None))
    capable = {"fake": ["cpu", META.type]}  # devices of the fake process group
    backends = torch.distributed.Backend
    yield patch.object(backends, "backend_capability", backends.backend_capability | capable)
    for module in (clip_grads, megatron_optimizer):
        yield patch.object(module, "multi_tensor_scale_impl", _scale_kernel)
    fusion: dict[str, Any] = {
        "_grad_accum_fusion_available": True,
        "fused_weight_gradient_mlp_cuda": _NoWgradKernels,
    }
    yield patch.multiple(tensor_parallel_layers, create=True, **fusion)


@contextmanager
def megatron_without_gpu(
    case: MegatronCase, pp_rank: int = 0, kernel: KernelScope = nullcontext
) -> Iterator[None]:
    """Inside, Megatron is the first rank of stage `pp_rank` of the case, on fake tensors.
    `kernel()` surrounds each function that a GPU would run as one compiled kernel."""
    with ExitStack() as stack:
        for one in _patches(kernel):
            stack.enter_context(one)
        stack.enter_context(world.fake_world(case, case.rank_of_stage(pp_rank)))
        stack.callback(MTPLossLoggingHelper.tracker.clear)
        for rotary in (RotaryEmbedding, YarnRotaryEmbedding):
            stack.callback(rotary.forward.cache_clear)  # holds tensors of this run
        stack.enter_context(CudaSemantics())
        for one in routing_patches(case) if case.has_experts else ():
            stack.enter_context(one)
        yield


def fake_chunks(case: MegatronCase) -> list[Any]:
    """Model chunks of the current rank, whose attention has the memory of a flash kernel."""
    config = model.transformer_config(case, perform_initialization=False)
    return model.build_chunks(case, FlashLikeAttention, config)
