"""What brings tokens to their experts: Megatron's router, permutation and sorting, each by torch's
own kernels and by Transformer Engine's fused ones, forward and backward.

`_seconds` is from call to call, the processor's part included, `_busy_seconds` the kernels' own.
Predicted is each operator of the advisor alone. The router's GEMM is Transformer Engine's wherever
that is installed. The sums of losses that Megatron keeps for its log are not run.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.layers.operators import Operator
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.time.machine import Machine, machine
from advisor.time.roofline import backward_seconds, forward_seconds
from research.kernels.timings import Timings
from research.probes.probe_case import Case, Figures
from research.probes.rates import ALONE, EXPERT_TOKENS, EXPERTS, GPU, case_of, layer

_OPERATORS: Final = (
    *("router", "topk_routing", "permute"),
    *("sort_by_expert", "unsort_by_expert", "unpermute"),
)
_NO_NETWORK: Final[Any] = None  # no operator here communicates

Tensors = tuple[Tensor, ...]


def cases(tiny: bool) -> tuple[Case, ...]:
    """Qwen3 30B and Mixtral 8x7B with all experts on one rank, DeepSeek-V3 on eight."""
    return (case_of("tokens", "routing and permuting of tokens", _predict, _tokens, tiny=tiny),)


class _Routed(Struct, frozen=True):
    """Tokens of one rank of a model, under one kind of kernels."""

    name: str
    model: ModelSpec
    tokens: int
    ranks: int
    fused: bool

    @property
    def rows(self) -> int:
        """Of all the rank's experts: as many as its tokens take, spread evenly."""
        return self.tokens * self.model.moe_router_topk


def _all(*, tiny: bool) -> Iterator[_Routed]:
    """torch's kernels first: those of Transformer Engine are compiled as they are met."""
    for fused, (name, ranks) in product((False, True), EXPERTS.items()):
        fusions = {"moe_permute_fusion": fused, "moe_router_fusion": fused}
        model = replace(load_model(name), **fusions, **({"hidden_size": 64} if tiny else {}))
        yield _Routed(
            name=f"{name}.{'fused' if fused else 'unfused'}",
            model=model,
            tokens=64 if tiny else EXPERT_TOKENS,
            ranks=ranks,
            fused=fused,
        )


def _predict(*, tiny: bool) -> Figures:
    rates = machine(GPU, ALONE, Precision.BF16)
    found: dict[str, Any] = {}
    for one in _all(tiny=tiny):
        for operator in layer(one.model, one.tokens, ep=one.ranks):
            if operator.name in _OPERATORS:
                found |= _figures(f"{one.name}.{operator.name}", operator, rates)
    return found


def _figures(name: str, operator: Operator, rates: Machine) -> dict[str, float]:
    forward = forward_seconds(operator, rates, _NO_NETWORK).compute
    backward = backward_seconds(operator, rates, _NO_NETWORK).compute
    reached = rates.memory_bytes_per_second
    found = {f"{name}.forward_seconds": forward, f"{name}.backward_seconds": backward}
    if operator.gemm is not None:
        return found
    return {
        **found,
        f"{name}.forward_kernels": operator.forward_kernels,
        f"{name}.forward_busy_seconds": operator.forward_bytes / reached,
        f"{name}.backward_kernels": operator.backward_kernels,
        f"{name}.backward_busy_seconds": operator.backward_bytes / reached,
    }


def _tokens(timings: Timings, *, tiny: bool) -> None:
    try:
        megatron = import_module("megatron.core.transformer.moe.moe_utils")
    except ImportError as error:
        raise UserError("megatron-core", None, f"cannot be loaded: {error}") from None
    vars(megatron).setdefault("te_general_gemm", None)  # not defined without Transformer Engine
    for one in _all(tiny=tiny):
        _Rank(timings, megatron, one).run()


class _Rank:
    """One rank's calls of megatron-core 0.16.1 transformer/moe/moe_utils.py, as its router.py and
    token_dispatcher.py (all-to-all) make them."""

    def __init__(self, timings: Timings, megatron: Any, one: _Routed) -> None:
        self.timings, self.megatron, self.one = timings, megatron, one
        self.model, self.device = one.model, timings.device.value
        self.experts = one.model.num_moe_experts or 1
        wide = one.model.moe_router_dtype is not None
        self.dtype = torch.float32 if wide else torch.bfloat16

    def run(self) -> None:
        """All operators, both ways."""
        rows = 2 * self.one.rows * self.model.hidden_size
        logits = self.one.tokens * self.experts * self.dtype.itemsize
        route = partial(self._route, fused=self.one.fused)
        self._both("router", self._normalized, self._gate, rows)
        self._both("topk_routing", self._logits, route, logits)
        self._both("permute", self._chosen, self._permute, rows)
        self._both("sort_by_expert", self._rows, self._sort, rows)
        self._both("unsort_by_expert", self._rows, self._unsort, rows)
        self._both("unpermute", self._permuted, self._unpermute, rows)

    def _both(
        self,
        operator: str,
        make: Callable[[], Tensors],
        run: Callable[..., Tensors],
        num_bytes: int,
    ) -> None:
        """Forward with its graph, and back through one that is there."""

        def recorded() -> tuple[Tensors, Tensors, Tensors]:
            inputs = make()
            outputs = tuple(output for output in run(*inputs) if output.requires_grad)
            wanted = tuple(tensor for tensor in inputs if tensor.requires_grad)
            return outputs, wanted, tuple(torch.ones_like(output) for output in outputs)

        def backward(outputs: Tensors, inputs: Tensors, gradients: Tensors) -> object:
            return torch.autograd.grad(outputs, inputs, gradients, True, allow_unused=True)

        name = f"{self.one.name}.{operator}"
        self.timings.time(f"{name}.forward", make, run, num_bytes, counted=True)
        self.timings.time(f"{name}.backward", recorded, backward, num_bytes, counted=True)

    def _normalized(self) -> Tensors:
        """The layer's normalized input, and the router's weight."""
        tensor, hidden = self.timings.inputs.tensor, self.model.hidden_size
        both = tensor(self.one.tokens, hidden), tensor(self.experts, hidden)
        return tuple(one.requires_grad_() for one in both)

    def _gate(self, tokens: Tensor, weight: Tensor) -> Tensors:
        return (self.megatron.router_gating_linear(tokens, weight, None, self.dtype),)

    def _logits(self) -> Tensors:
        size, where = (self.one.tokens, self.experts), self.device
        return (torch.randn(size, device=where, dtype=self.dtype, requires_grad=True),)

    def _route(self, logits: Tensor, *, fused: bool) -> Tensors:
        """Probabilities, with the auxiliary loss where the model has one, and the map."""
        model, utils = self.model, self.megatron
        score: dict[str, Any] = {
            "topk": model.moe_router_topk,
            "score_function": model.moe_router_score_function.value,
            "fused": fused,
        }
        biased = model.moe_router_enable_expert_bias
        probs, chosen = utils.topk_routing_with_score_function(
            logits,
            use_pre_softmax=model.moe_router_pre_softmax,
            num_groups=model.moe_router_num_groups,
            group_topk=model.moe_router_group_topk,
            expert_bias=torch.zeros(self.experts, device=self.device) if biased else None,
            **score,
        )
        if not model.moe_aux_loss_coeff:
            return probs, chosen
        counted, scores = utils.compute_routing_scores_for_aux_loss(logits, **score)
        loss = utils.switch_load_balancing_loss_func(
            probs=scores,
            tokens_per_expert=counted.sum(dim=0),
            total_num_tokens=len(logits),
            topk=model.moe_router_topk,
            num_experts=self.experts,
            moe_aux_loss_coeff=model.moe_aux_loss_coeff,
            fused=fused,
        )
        return utils.MoEAuxLossAutoScaler.apply(probs, loss), chosen

    def _chosen(self) -> Tensors:
        """Tokens, probabilities and the map."""
        with torch.no_grad():
            probs, chosen = self._route(*self._logits(), fused=False)
        tokens = self.timings.inputs.tensor(self.one.tokens, self.model.hidden_size)
        return tokens.requires_grad_(), probs.requires_grad_(), chosen

    def _permute(self, tokens: Tensor, probs: Tensor, chosen: Tensor) -> Tensors:
        given = {"probs": probs, "num_out_tokens": self.one.rows, "fused": self.one.fused}
        permuted: Tensors = self.megatron.permute(tokens, chosen, **given)
        return permuted

    def _permuted(self) -> Tensors:
        """Rows, where each comes from, and the map."""
        tokens, probs, chosen = self._chosen()
        with torch.no_grad():
            rows, _, places = self._permute(tokens, probs, chosen)
        return rows.requires_grad_(), places, chosen

    def _unpermute(self, rows: Tensor, places: Tensor, chosen: Tensor) -> Tensors:
        shape = torch.Size((self.one.tokens, self.model.hidden_size))
        given = {"restore_shape": shape, "routing_map": chosen, "fused": self.one.fused}
        return (self.megatron.unpermute(rows, places, **given),)

    def _rows(self) -> Tensors:
        """Rows and probabilities of all ranks' tokens, and the chunks in which they came."""
        rows, count = self.timings.inputs.tensor, self.one.rows
        probs = torch.rand(count, device=self.device, dtype=self.dtype, requires_grad=True)
        where = self.device if self.one.fused else "cpu"  # the dispatcher's permute_idx_device
        chunks = torch.full((self.experts,), count // self.experts, device=where)
        return rows(count, self.model.hidden_size).requires_grad_(), probs, chunks

    def _sort(self, rows: Tensor, probs: Tensor, chunks: Tensor) -> Tensors:
        order = torch.arange(self.experts, device=chunks.device)
        order = order.reshape(self.one.ranks, -1).T.ravel()
        return self._chunks(rows, chunks, order, probs)

    def _unsort(self, rows: Tensor, _: Tensor, chunks: Tensor) -> Tensors:
        order = torch.arange(self.experts, device=chunks.device)
        order = order.reshape(-1, self.one.ranks).T.ravel()
        return self._chunks(rows, chunks, order, None)

    def _chunks(self, rows: Tensor, chunks: Tensor, order: Tensor, probs: Tensor | None) -> Tensors:
        sort = self.megatron.sort_chunks_by_idxs
        found = sort(rows, chunks, order, probs=probs, fused=self.one.fused)
        return tuple(tensor for tensor in found if tensor is not None)
