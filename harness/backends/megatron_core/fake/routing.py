"""Mixture of experts on fake tensors: routing without contents.

Fake tensors have no values, so that nobody can say how many tokens an expert gets. Here every
expert gets as many as any other (what moe_router_force_load_balancing aims at). The patches stand
where Megatron reads values: masked_select, the sizes of all-to-alls, chunks and experts.
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from megatron.core.transformer.moe import experts as megatron_experts
from megatron.core.transformer.moe import moe_utils, router, token_dispatcher

try:
    from megatron.core.transformer.moe import moe_logging
except ImportError:  # before 0.17
    moe_logging = None

from harness.backends.megatron_core.case import MegatronCase


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
