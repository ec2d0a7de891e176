"""The auxiliary loss of experts against transformers: by itself, and in a whole model."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import (  # noqa: E402
    load_balancing_loss_func,
)

from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import NONE  # noqa: E402
from advisor.job.loss_head import LossHead, RouterAuxLoss  # noqa: E402
from advisor.layers.transformers.aux_loss import router_aux_loss, router_logits  # noqa: E402
from advisor.memory.chunk import chunk_footprint  # noqa: E402
from advisor.memory.liveness import footprint  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402

from .stacks.expert_blocks import transformers_config  # noqa: E402
from .stacks.kernels import GpuKernels  # noqa: E402
from .stacks.meter import LiveBytes  # noqa: E402
from .stacks.shapes import QWEN3_30B_A3B, shape_of  # noqa: E402


def _stacked(gate_logits: tuple[torch.Tensor, ...], experts: int, topk: int, _: Any) -> Any:
    """load_balancing_loss_func of transformers 5.15.0, without a mask."""
    concatenated = torch.cat(list(gate_logits), dim=0)
    weights = torch.nn.functional.softmax(concatenated, dim=-1)
    _, selected = torch.topk(weights, topk, dim=-1)
    mask = torch.nn.functional.one_hot(selected, experts)
    tokens = torch.mean(mask.float(), dim=0)
    return torch.sum(tokens * torch.mean(weights, dim=0).unsqueeze(0)) * experts


@pytest.mark.parametrize(
    ("how", "function"),
    [(RouterAuxLoss.STACKED, _stacked), (RouterAuxLoss.BY_LAYER, load_balancing_loss_func)],
)
@pytest.mark.parametrize("seq", [1024, 8192])
def test_the_loss_alone(how: RouterAuxLoss, function: Callable[..., Any], seq: int) -> None:
    model = replace(QWEN3_30B_A3B, num_layers=48, transformer_impl=TransformerImpl.TRANSFORMERS)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=seq, mbs=1)
    shape = replace(shape, head=LossHead(router_aux_loss=how))
    experts, topk = model.num_moe_experts, model.moe_router_topk
    with FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        size = seq, experts
        logits = [torch.empty(size, dtype=torch.bfloat16, requires_grad=True) for _ in range(48)]
        with LiveBytes(tuple(logits)) as live:
            loss = function(tuple(logits), experts, topk, None)
            kept, forward = live.now, live.peak
            live.reset_peak()
            loss.backward()
            backward = live.peak
    found, its = footprint((router_aux_loss(shape),), ()), router_logits(shape).num_bytes
    assert found.kept == pytest.approx(kept, rel=0.001)
    assert found.forward.num_bytes - its == pytest.approx(forward, rel=0.001)
    assert found.backward.num_bytes == pytest.approx(backward, rel=0.005)


def test_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = "transformers.masking_utils.find_packed_sequence_indices"
    monkeypatch.setattr(packed, lambda *args, **kwargs: None)
    layers, seq = 4, 4096
    model = replace(QWEN3_30B_A3B, num_layers=layers, vocab_size=1024)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=seq, mbs=1)
    shape = replace(shape, head=LossHead(router_aux_loss=RouterAuxLoss.BY_LAYER))
    with FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        config = transformers_config(shape.model)
        config.output_router_logits = True
        made = transformers.Qwen3MoeForCausalLM._from_config(config, dtype=torch.bfloat16).train()
        tokens, labels = (torch.zeros((1, seq), dtype=torch.int64) for _ in range(2))
        known = (*made.parameters(), *made.buffers(), tokens, labels)
        with LiveBytes(known) as live:
            loss = made(input_ids=tokens, labels=labels).loss
            kept, forward = live.now, live.peak
            del loss
    plan = chunk_plan(NONE, shape, shape.model.layer_kinds, Semantics(starts_with_first=True))
    predicted = chunk_footprint(shape, plan, True, True)
    assert predicted.kept == pytest.approx(kept, rel=0.0002)  # of it the aux loss is 0.0013
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=0.005)
