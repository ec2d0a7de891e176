"""Every setting: gradients equal to none's, bytes and FLOPs equal to the prediction."""

from dataclasses import dataclass, replace
from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from cases import EXPERTS, GPT, LLAMA, Phases, workload  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from advisor.models.spec import (  # noqa: E402
    Activation,
    ModelSpec,
    Normalization,
    PositionEmbedding,
)
from harness.backends.native.modules.attention import ATTENTION_FORWARD  # noqa: E402
from harness.backends.native.predict import (  # noqa: E402
    predict_replayed_flops_per_layer,
    predict_saved_bytes_per_layer,
)
from harness.backends.native.step import NativeStep, build_step  # noqa: E402
from harness.measure.memory import StorageMeter  # noqa: E402

SEED = 3
SETTINGS = (
    "selective",
    "selective:core_attn",
    "selective:mlp",
    "selective:layernorm",
    "selective:core_attn,mlp",
    "selective:core_attn,layernorm",
    "selective:mlp,layernorm",
    "selective:core_attn,mlp,layernorm",
    "full:uniform:1",
    "full:uniform:2",
    "full:uniform:3",
    "full:block:1",
    "full:block:2",
    "op:save_matmul",
    "op:save_attention",
    "op:torchtitan",
    "none+offload=core_attn,attn_proj",
    "none+offload=attn_norm,qkv_linear,mlp_norm",
    "selective:mlp+offload=core_attn",
    "selective:layernorm+offload=qkv_linear",
)
LLAMA_DROPOUT = replace(LLAMA, hidden_dropout=0.1, attention_dropout=0.1)
MODELS = {"llama": LLAMA_DROPOUT, "gpt": GPT}


@dataclass(frozen=True)
class Seen:
    """Gradients and loss of one step, and the FLOPs that torch counted in it."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    flops: int


def causal_half(
    query: list[int], key: list[int], value: list[int], *_: object, **__: object
) -> int:
    b, heads, s, channels = query
    return b * heads * s * key[2] * (channels + value[3])


def run(step: NativeStep) -> Seen:
    counter = FlopCounterMode(
        display=False, custom_mapping=dict.fromkeys(ATTENTION_FORWARD, causal_half)
    )
    with counter:
        loss = step.forward_backward(Phases())
    gradients = {name: p.grad.clone() for name, p in step.named_parameters().items()}
    step.optimizer.drop_gradients()
    return Seen(loss, gradients, counter.get_total_flops())


@lru_cache(maxsize=8)
def without_recompute(name: str) -> Seen:
    return run(build_step(workload(MODELS[name]), SEED))


@pytest.mark.parametrize("setting", ["none", *SETTINGS])
@pytest.mark.parametrize("name", MODELS)
def test_setting(name: str, setting: str) -> None:
    """Dropout is on: equal gradients mean that the random state is replayed."""
    one = workload(MODELS[name], setting)
    plain = without_recompute(name)
    step = build_step(one, SEED)  # seeds dropout
    seen = run(step)
    assert torch.equal(seen.loss, plain.loss)
    different = [key for key, grad in plain.gradients.items()
                 if not torch.equal(grad, seen.gradients[key])]  # fmt: skip
    assert not different
    predicted = predict_replayed_flops_per_layer(one)
    passes = one.model.num_layers * step.microbatches
    assert seen.flops - plain.flops == predicted * passes
    assert step.flops().replayed_per_layer == predicted
    assert step.saved_bytes_per_layer() == predict_saved_bytes_per_layer(one)


def test_dropout_changes_gradients() -> None:
    """Otherwise equality above would say nothing about random states."""
    gradients = without_recompute("llama").gradients
    other = run(build_step(workload(LLAMA), SEED)).gradients
    assert any(not torch.equal(grad, other[key]) for key, grad in gradients.items())


SHAPES: dict[str, ModelSpec] = {
    "one group": replace(LLAMA, num_query_groups=1),
    "no groups": replace(LLAMA, num_query_groups=4),
    "head norms": replace(LLAMA, qk_layernorm=True),
    "part of the head is rotated": replace(LLAMA, rotary_percent=0.5),
    "no positions": replace(LLAMA, position_embedding_type=PositionEmbedding.NONE),
    "biases": replace(LLAMA, add_bias_linear=True, normalization=Normalization.LAYER_NORM),
    "qkv bias, wide heads": replace(LLAMA, add_qkv_bias=True, kv_channels=24),
    "geglu": replace(LLAMA, activation=Activation.GEGLU),
    "squared relu": replace(LLAMA, activation=Activation.SQUARED_RELU),
    "gpt without bias": replace(GPT, add_bias_linear=False, attention_dropout=0.0),
    "gpt grouped": replace(GPT, num_query_groups=2, hidden_dropout=0.0),
}


@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_saved_bytes_of_shapes(shape: str, micro_batch_size: int) -> None:
    settings = ("none", "selective:core_attn,layernorm", "op:save_attention")
    for setting in settings[: 3 if micro_batch_size == 1 else 1]:
        one = workload(SHAPES[shape], setting, seq_length=16, micro_batch_size=micro_batch_size)
        assert build_step(one, SEED).saved_bytes_per_layer() == predict_saved_bytes_per_layer(one)


class LiveStorages(TorchDispatchMode):
    """Bytes alive of storages that operators have made inside: an account of its own, which also
    sees what only a variable of the program holds."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, object]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        output = func(*args, **(kwargs or {}))
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs))
                 if isinstance(leaf, torch.Tensor)}  # fmt: skip
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in known:
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage._weak_ref())
        return output

    def num_bytes(self) -> int:
        alive = [key for key, (reference, _) in self._made.items() if not reference.expired()]
        return sum(
            torch.UntypedStorage._new_with_weak_ptr(self._made[key][1]).nbytes() for key in alive
        )


@pytest.mark.parametrize(
    ("model", "setting"),
    [(LLAMA, "selective:core_attn"), (LLAMA, "selective:mlp"), (LLAMA, "selective:layernorm"),
     (LLAMA, "full:uniform:1"), (LLAMA, "selective:core_attn,mlp,layernorm"),
     (LLAMA, "op:torchtitan"), (EXPERTS, "selective:moe"),
     (EXPERTS, "selective:moe_act,layernorm")],
)  # fmt: skip
def test_what_is_not_kept_is_off_the_peak(model: ModelSpec, setting: str) -> None:
    """The peak is the head's, with all layers' kept tensors alive; what a replay brings back must
    be gone before the next layer's."""

    def peak(spec: str) -> tuple[int, int]:
        wide_head = replace(model, vocab_size=2048)
        one = workload(wide_head, spec, seq_length=64, micro_batch_size=4)
        step, meter = build_step(one, SEED), StorageMeter()
        with meter.measuring():
            step.forward_backward(Phases())
        return meter.peak_bytes, predict_saved_bytes_per_layer(one) * one.model.num_layers

    highest, kept = peak("none")
    lower, kept_less = peak(setting)
    assert highest - lower == kept - kept_less


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "setting",
    ["none", "selective:layernorm", "selective:core_attn,mlp", "full:uniform:2", "full:block:1",
     "op:torchtitan"],
)  # fmt: skip
def test_nothing_else_is_alive(name: str, setting: str) -> None:
    """After the forward: what is predicted, and the output, which is as large as the input."""
    one = workload(MODELS[name], setting)
    decoder = build_step(one, SEED).model.decoder
    decoder.final_layernorm = None
    x = torch.randn(2, 32, 64, dtype=torch.bfloat16, requires_grad=True)
    live = LiveStorages()
    with live:
        output = decoder(x)
    assert output.requires_grad
    predicted = predict_saved_bytes_per_layer(one) * one.model.num_layers
    assert live.num_bytes() == predicted
