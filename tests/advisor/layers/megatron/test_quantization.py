"""Bytes of 8- and 4-bit copies on a toy: a layer's hidden state has 2048 elements on a rank."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron.plan import selective_runs
from advisor.frameworks.megatron.setting import selective
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
from advisor.layers.megatron import quantization
from advisor.layers.operators import Tensor
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import DENSE, LayerKind
from advisor.plan.recompute_plan import ReplayRun, kept_tensors
from advisor.search.rank_shape import rank_shape
from tests.advisor.jobs import job_of
from tests.advisor.toys import toy_shape

SOURCE = Tensor("x", (4, 2, 256), DType.BF16)
ELEMENTS = 2048


def te_shape(precision: Precision, **changes: object) -> RankShape:
    changes = {"transformer_impl": "transformer_engine", "attention_backend": "fused", **changes}
    return replace(toy_shape(**changes), precision=precision)


def kept(shape: RankShape, kind: LayerKind = DENSE) -> dict[str, int]:
    tensors = kept_tensors(transformer_layer(shape, kind), ())
    return {name: tensor.num_bytes for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("precision", "num_bytes"),
    [
        (Precision.BF16, 2 * ELEMENTS),
        (Precision.FP8_DELAYED, ELEMENTS),
        (Precision.FP8_CURRENT, ELEMENTS),
        (Precision.FP8_BLOCKWISE, ELEMENTS + 4 * ELEMENTS // 128),
        (Precision.MXFP8, ELEMENTS + ELEMENTS // 32),
        (Precision.NVFP4, ELEMENTS // 2 + ELEMENTS // 16),
    ],
)
def test_one_orientation_of_the_input_is_kept(precision: Precision, num_bytes: int) -> None:
    shape = te_shape(precision)
    saved = quantization.saved_input(shape, SOURCE)
    assert sum(tensor.num_bytes for tensor in saved) == num_bytes
    if precision is Precision.BF16:
        assert saved == (SOURCE,)
        assert quantization.gradient_copies(shape, SOURCE) == 0
    else:
        assert {tensor.copy_of for tensor in saved} == {"x"}
        assert quantization.quantized_bytes(shape, ELEMENTS) == num_bytes
        assert quantization.gradient_copies(shape, SOURCE) == 2 * num_bytes


def test_megatrons_own_layers_stay_at_16_bits() -> None:
    local = replace(toy_shape(), precision=Precision.FP8_CURRENT)
    assert quantization.saved_input(local, SOURCE) == (SOURCE,)
    assert quantization.weight_copies(local, 1000) == 0
    assert kept(local) == kept(toy_shape())


@pytest.mark.parametrize(
    ("precision", "hopper", "blackwell"),
    [
        (Precision.BF16, 0, 0),
        (Precision.FP8_CURRENT, 2 * 2**20, 2**20),
        (Precision.FP8_BLOCKWISE, 2 * (2**20 + 256), 2 * (2**20 + 256)),
        (Precision.MXFP8, 2 * (2**20 + 2**15), 2 * (2**20 + 2**15)),
        (Precision.NVFP4, 2 * (2**19 + 2**16), 2 * (2**19 + 2**16)),
    ],
)
def test_copies_of_the_weights(precision: Precision, hopper: int, blackwell: int) -> None:
    """Row- and column-wise; on Blackwell a tensor with one scale serves both GEMMs."""
    shape = te_shape(precision)
    newer = replace(shape, takes_any_layout=True)
    assert quantization.weight_copies(shape, 2**20) == hopper
    assert quantization.weight_copies(newer, 2**20) == blackwell
    wide = Tensor("x", (2**20,), DType.BF16)
    if precision is not Precision.FP8_BLOCKWISE:  # whose weights have larger blocks
        assert quantization.gradient_copies(shape, wide) == hopper
        assert quantization.gradient_copies(newer, wide) == blackwell


@pytest.mark.parametrize(("gpu", "any_layout"), [("A100", False), ("H200", False), ("B200", True)])
def test_gpus_whose_gemms_take_any_layout(gpu: str, *, any_layout: bool) -> None:
    part = load_gpu(gpu)
    job = job_of(
        "llama3_8b",
        ParallelLayout(data_parallel_size=8),
        JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=8),
        part,
    )
    assert rank_shape(job).takes_any_layout is any_layout


def test_what_a_layer_keeps_in_8_bits_instead_of_16() -> None:
    """The inputs of qkv, fc1 and fc2, half each; proj keeps attention's own output."""
    wide, narrow = kept(te_shape(Precision.BF16)), kept(te_shape(Precision.FP8_CURRENT))
    for name in ("input_layernorm_out", "pre_mlp_layernorm_out", "activation_out"):
        assert narrow.pop(f"{name}_fp8_current") == wide.pop(name) // 2
    assert narrow == wide


@pytest.mark.parametrize(
    ("precision", "release", "copied"),
    [
        (Precision.FP8_DELAYED, (2, 20), True),
        (Precision.FP8_CURRENT, (2, 5), True),
        (Precision.FP8_CURRENT, (2, 6), False),
        (Precision.MXFP8, (2, 6), False),
        (Precision.NVFP4, (2, 6), True),
        (Precision.NVFP4, (2, 7), False),
    ],
)
def test_whether_proj_keeps_a_copy_of_attentions_output(precision, release, copied) -> None:
    found = kept(replace(te_shape(precision), transformer_engine=release))
    assert (f"core_attn_out_{precision}" in found) is copied
    assert "core_attn_out" in found


def test_attention_in_8_bits() -> None:
    wide = kept(te_shape(Precision.FP8_CURRENT))
    narrow = kept(te_shape(Precision.FP8_CURRENT, fp8_dot_product_attention=True))
    delayed = kept(te_shape(Precision.FP8_DELAYED, fp8_dot_product_attention=True))
    names = ("query_rope", "key_rope", "value_contiguous")
    assert [narrow[f"{name}_fp8"] for name in names] == [wide[name] // 2 for name in names]
    assert narrow["core_attn_out"] == wide["core_attn_out"]
    assert "core_attn_out" not in delayed
    assert delayed["core_attn_out_fp8"] == wide["core_attn_out"] // 2
    assert "core_attn_out_fp8_delayed" in delayed  # proj's own copy
    assert not any("core_attn_out_fp8" in name for name in narrow)


def test_attention_in_mxfp8_keeps_both_dimensions() -> None:
    """By hand: a byte an element and one for 32 of them, twice; more than 16 bits are."""
    wide = kept(te_shape(Precision.MXFP8))
    narrow = kept(te_shape(Precision.MXFP8, fp8_dot_product_attention=True))
    for name in ("query_rope", "key_rope", "value_contiguous"):
        elements = wide[name] // 2
        assert narrow[f"{name}_mxfp8"] == 2 * (elements + elements // 32)
        assert name not in narrow
    assert narrow["core_attn_out"] == wide["core_attn_out"]
    assert sum(narrow.values()) > sum(wide.values())


def test_the_activations_input_in_8_bits() -> None:
    wide = kept(te_shape(Precision.FP8_CURRENT))
    narrow = kept(te_shape(Precision.FP8_CURRENT, activation_func_fp8_input_store=True))
    assert narrow["fc1_out_fp8"] == wide["fc1_out"] // 2
    assert "fc1_out" not in narrow


def test_layers_at_the_ends_in_16_bits() -> None:
    shape = te_shape(Precision.FP8_CURRENT)
    assert kept(shape, DENSE._replace(high_precision=True)) == kept(te_shape(Precision.BF16))
    model = replace(
        shape.model, num_layers=5, first_last_layers_bf16=True, num_layers_at_end_in_bf16=2
    )
    assert [kind.high_precision for kind in model.layer_kinds] == [True, False, False, True, True]


def test_a_discarded_input_leaves_no_copy() -> None:
    """Megatron has the layer save its original input, which the replay writes again."""
    shape = te_shape(Precision.FP8_CURRENT)
    operators = transformer_layer(shape)
    run = ReplayRun(frozenset({operators[0].module}), discards_output=True)
    left = kept_tensors(operators, (run,))
    assert "input_layernorm_out_fp8_current" not in left
    assert "pre_mlp_layernorm_out_fp8_current" in left


def test_a_recomputed_mlp_keeps_the_16_bit_input() -> None:
    shape = te_shape(Precision.FP8_CURRENT)
    runs = selective_runs(selective("mlp"), shape.model)
    left = kept_tensors(transformer_layer(shape), runs)
    assert left["after_attention"].dtype is DType.BF16
    assert not [name for name in left if name.startswith(("pre_mlp", "fc1", "activation"))]
