"""What offloading takes off the device, and what it costs during the kernels."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.megatron.plan import (
    EVERYTHING,
    chunk_plan,
    offloaded_by_layer,
    offloaded_modules,
)
from advisor.frameworks.megatron.setting import parse_setting
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.models.layer_kind import DENSE, FeedForward
from advisor.plan.recompute_plan import copied_bytes, offloaded_bytes
from advisor.time.attention import AttentionRates, Reached
from advisor.time.communication import Link
from advisor.time.gemm import GemmRates
from advisor.time.machine import Machine
from advisor.time.passes import chunk_times
from advisor.time.rank_links import Network
from tests.advisor.toys import toy_shape

TE = {"transformer_impl": "transformer_engine", "attention_backend": "fused"}
BIG = 16384
"""A sequence at which the hidden state of a rank passes 1,048,576 elements."""
HIDDEN = BIG * 2 * 32 * 2  # query, or the attention's output: [s, 2, 2 heads of 16], bf16


def big(**changes: object) -> RankShape:
    return toy_shape(seq_length=BIG, **{**TE, **changes})


def away(shape: RankShape, spec: str) -> int:
    return both(shape, spec)[0]


def both(shape: RankShape, spec: str) -> tuple[int, int]:
    """Bytes of a layer that leave the device, and that are copied to the host."""
    setting, operators = parse_setting(spec), transformer_layer(shape)
    segment = chunk_plan(setting, shape.model, (DENSE,), True).segments[0]
    how = operators, segment.runs, segment.offloaded
    return offloaded_bytes(*how), copied_bytes(*how)


@pytest.mark.parametrize(
    ("modules", "leaves", "copied"),
    [("core_attn", 1, 2), ("core_attn,attn_proj", 2, 3), ("attn_proj", 0, 1)],
)
def test_core_attention_and_its_output(modules, leaves, copied) -> None:
    """q leaves; k and v are half as large and too small; the output only if both savers go, each of
    which copies it."""
    found = both(big(), f"none+offload={modules}")
    assert found == (leaves * HIDDEN, copied * HIDDEN)


def test_small_tensors_stay() -> None:
    assert both(toy_shape(**TE), "none+offload=core_attn,attn_proj") == (0, 0)


def test_a_checkpoints_input_stays() -> None:
    shape = big()
    assert both(shape, "selective:core_attn+offload=core_attn") == (0, 0)


def test_experts_regions_are_those_of_a_grouped_mlp() -> None:
    setting = parse_setting("none+offload=expert_fc1,moe_act")
    moe, te = DENSE._replace(feed_forward=FeedForward.MOE), big().model
    grouped = replace(te, moe_grouped_gemm=True)
    both = {Module.EXPERT_FC1, Module.EXPERT_ACTIVATION}
    assert offloaded_modules(setting, grouped, moe) == both
    assert not offloaded_modules(setting, grouped, DENSE) | offloaded_modules(setting, te, moe)


def test_dense_layers_of_transformer_engine_have_no_norm_of_their_own() -> None:
    setting = parse_setting("none+offload=attn_norm,mlp_norm,qkv_linear")
    local, te = toy_shape().model, big().model
    moe = DENSE._replace(feed_forward=FeedForward.MOE)
    assert offloaded_modules(setting, te, DENSE) == {Module.INPUT_LAYERNORM, Module.LINEAR_QKV}
    assert Module.PRE_MLP_LAYERNORM in offloaded_modules(setting, te, moe)
    assert Module.PRE_MLP_LAYERNORM in offloaded_modules(setting, local, DENSE)
    latent = replace(te, multi_latent_attention=True, num_query_groups=te.num_attention_heads)
    assert offloaded_modules(setting, latent, DENSE) == {
        Module.INPUT_LAYERNORM,
        Module.QKV_DOWN_PROJ,
        Module.QK_LAYERNORM,
        Module.QKV_UP_PROJ,
    }


def test_whole_layers_from_the_first_on() -> None:
    shape = big()
    plan = chunk_plan(parse_setting("none+cpu_offloading=2"), shape.model, (DENSE,) * 5, True)
    assert [(s.copies, s.offloaded) for s in plan.segments] == [(2, EVERYTHING), (3, frozenset())]


def test_a_chunk_holds_less_and_has_one_layer_in_transit() -> None:
    shape, spec = big(), "none+offload=core_attn,attn_proj"
    plans = [
        chunk_plan(parse_setting(text), shape.model, (DENSE,) * 3, True) for text in ("none", spec)
    ]
    plain, less = (chunk_footprint(shape, plan, False, False) for plan in plans)
    layer = away(shape, spec)
    assert plain.kept - less.kept == 3 * layer
    assert less.forward.num_bytes == plain.forward.num_bytes - 2 * layer + layer
    assert less.backward.num_bytes == plain.backward.num_bytes - 2 * layer + layer


def test_the_last_layer_stays_where_its_backward_follows_at_once() -> None:
    shape, setting = big(), parse_setting("none+offload=core_attn,attn_proj")
    attention = frozenset({Module.CORE_ATTENTION, Module.LINEAR_PROJ})
    plan = chunk_plan(setting, shape.model, (DENSE,) * 3, True, turns=True)
    nothing = frozenset[Module]()
    found = [(one.copies, one.offloaded, one.fetched) for one in plan.segments]
    assert found == [(2, attention, nothing), (1, nothing, attention)]
    half = replace(setting, offload_fraction=0.5)
    sent = offloaded_by_layer(half, shape.model, (DENSE,) * 3, turns=True)
    assert sent == (attention, nothing, nothing)


LINK = Link(bytes_per_second=1e9, latency_seconds=0.0)
MACHINE = Machine(
    linear=GemmRates(
        flops=1e12,
        sustained_flops=1e12,
        multiprocessors=132,
        bytes_per_second=1e12,
        kernel_seconds=0.0,
    ),
    bf16_flops=1e12,
    attention=AttentionRates(peak_flops=1e12, flash=Reached(1.0, 1.0), fused=Reached(1.0, 1.0)),
    memory_bytes_per_second=1e12,
    chain_bytes_per_second=1e12,
    optimizer_bytes_per_second=1e12,
    kernel_seconds=0.0,
    hidden_fraction=1.0,
)
NETWORK = Network(tensor=LINK, context=LINK, tensor_ranks=2, context_ranks=1)


def test_what_the_kernels_do_not_hide_costs_time() -> None:
    shape, spec = big(), "none+offload=core_attn,attn_proj"
    plain, offloading = (
        chunk_plan(parse_setting(text), shape.model, (DENSE,) * 4, True) for text in ("none", spec)
    )
    base = chunk_times(shape, MACHINE, NETWORK, plain)
    rate = 4 * both(shape, spec)[1]

    def exposed(seconds: float) -> float:
        """Of four layers whose copies take so long, each way."""
        machine = replace(MACHINE, host_bytes_per_second=rate / seconds)
        times = chunk_times(shape, machine, NETWORK, offloading)
        assert replace(times, offload=0.0) == base
        return times.offload

    assert exposed(base.forward) == pytest.approx(0.0, abs=1e-12)
    slow = 10 * base.backward
    assert exposed(slow) == pytest.approx(2 * slow - base.forward - base.backward)


@pytest.mark.parametrize("spec", ["none+cpu_offloading=x", "none+cpu_offloading=0", "none+cpu=3"])
def test_wrong_suffixes(spec: str) -> None:
    with pytest.raises(UserError):
        parse_setting(spec)


@pytest.mark.parametrize("spec", ["none+cpu_offloading=3", "selective:mlp+offload=core_attn"])
def test_specs_are_read_as_they_are_written(spec: str) -> None:
    assert parse_setting(spec).spec == spec


@pytest.mark.parametrize(
    ("layers", "fraction", "groups"),
    [(3, 1.0, 6), (3, 0.5, 3), (3, 0.4, 3), (3, 0.75, 5), (4, 0.4375, 4), (3, 0.01, 1)],
)
def test_of_a_fraction_the_last_groups_of_a_chunk_stay(layers, fraction, groups) -> None:
    """Two groups a layer, of which int(groups x (1 - fraction)) stay (megatron-core 0.19.2
    fine_grained_activation_offload.py, post_warmup_callback)."""
    setting = replace(parse_setting("none+offload=core_attn,attn_proj"), offload_fraction=fraction)
    sent = offloaded_by_layer(setting, big().model, (DENSE,) * layers)
    both = [Module.CORE_ATTENTION, Module.LINEAR_PROJ]
    wanted = [module for _ in range(layers) for module in both][:groups]
    assert sum(len(modules) for modules in sent) == groups
    for number, modules in enumerate(sent):
        assert modules == frozenset(wanted[2 * number : 2 * number + 2])


def test_a_fraction_is_spelt_and_read() -> None:
    spec = "none+offload=core_attn,attn_proj+offload_fraction=0.25"
    assert parse_setting(spec).spec == spec
    for wrong in ("0", "1.5", "half", "nan"):
        with pytest.raises(UserError, match=f"{wrong} must be more than 0"):
            parse_setting(f"none+offload=core_attn+offload_fraction={wrong}")
    with pytest.raises(UserError, match="needs \\+offload"):
        parse_setting("none+offload_fraction=0.5")
