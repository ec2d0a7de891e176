import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.buffers import (
    dummy_weight_gradients,
    gemm_workspaces,
    last_inputs,
    process_buffers,
    stage_buffers,
)
from advisor.hardware.catalogue import load_gpu
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.shape import RankShape
from advisor.models.layer_kind import DENSE
from advisor.models.options import AttentionBackend
from tests.advisor.layers.megatron.moe.moe_toys import GROUPED, MOE, moe_shape
from tests.advisor.toys import GPT, H100, HIDDEN, SHARD, held, toy_shape

MIB = 2**20
TE = {"transformer_impl": "transformer_engine"}


def buffers(shape: RankShape, chunks: int = 1, *, last: bool = False) -> dict[str, int]:
    return {
        term.name: term.num_bytes for term in process_buffers(shape, held(copies=chunks, last=last))
    }


def test_the_gather_buffer_holds_one_hidden_state() -> None:
    """Megatron's own column-parallel layers; under TE that is the output layer alone."""
    name = "global gather buffer"
    assert buffers(toy_shape())[name] == HIDDEN
    assert name not in buffers(toy_shape(sequence_parallel=False))
    assert name not in buffers(toy_shape(**TE))
    assert buffers(toy_shape(**TE), last=True)[name] == HIDDEN
    nothing_gathers = process_buffers(toy_shape(), (ModelChunk(layers=(), embedding=True),))
    assert name not in {term.name for term in nothing_gathers}


def test_every_chunk_keeps_its_last_input_and_the_gradient_but_the_first() -> None:
    layers = (DENSE, DENSE)
    chunks = (ModelChunk(layers=layers, embedding=True), *(ModelChunk(layers=layers),) * 2)
    assert last_inputs(toy_shape(), chunks) == 2 * 2 * SHARD


def test_unfused_attention_writes_its_scores_into_the_same_buffer() -> None:
    scores = 2 * 4 * 32 * 32 * 2
    assert buffers(toy_shape(GPT)) == {"global gather buffer": max(scores, HIDDEN)}
    long = toy_shape(GPT, seq_length=256, sequence_parallel=False)
    assert buffers(long) == {"global gather buffer": 2 * 4 * 256 * 256 * 2}
    assert not buffers(toy_shape(GPT, **TE))
    assert buffers(toy_shape(GPT, **TE, attn_logit_softcapping=50.0)) == buffers(toy_shape(GPT))


def test_each_chunk_caches_its_rotary_frequencies() -> None:
    name = "rotary frequencies"
    assert buffers(toy_shape(), 3)[name] == 3 * 32 * 8 * 4
    assert buffers(toy_shape(context_parallel_size=2))[name] == 16 * 8 * 4
    assert buffers(toy_shape(rotary_percent=0.5))[name] == 32 * 4 * 4
    assert name not in buffers(toy_shape(GPT))


def test_one_placeholder_gradient_a_weight_shape() -> None:
    """Of qkv [64, 64], proj [64, 32], fc1 [128, 64], fc2 [64, 64]: qkv and fc2 share one."""
    shape = toy_shape(**TE, gradient_accumulation_fusion=True)
    layer = 64 * 64 + 64 * 32 + 128 * 64
    assert dummy_weight_gradients(shape, held()) == 2 * layer
    assert dummy_weight_gradients(shape, held(last=True)) == 2 * (layer + 504 * 64)
    assert dummy_weight_gradients(toy_shape(**TE), held(last=True)) == 0


@pytest.mark.parametrize(
    ("capability", "cublas", "te"),
    [
        (8.0, 8_519_680, 4 * MIB),
        (9.0, 32 * MIB, 32 * MIB + 1024),
        (10.0, 8_519_680, 32 * MIB + 1024),
    ],
)
def test_workspaces_by_compute_capability(capability: float, cublas: int, te: int) -> None:
    def sizes(shape: RankShape, *, last: bool) -> list[int]:
        chunks = held(last=last)
        return [term.num_bytes for term in gemm_workspaces(shape, chunks, gpu)]

    gpu = replace(H100, compute_capability=capability)
    assert sizes(toy_shape(), last=False) == [2 * cublas]
    assert sizes(toy_shape(**TE), last=False) == [te]
    assert sizes(toy_shape(**TE), last=True) == [2 * cublas, te]
    unfused = toy_shape(**TE, attention_backend=AttentionBackend.UNFUSED)
    assert sizes(unfused, last=False) == [2 * cublas, te]
    repeats = replace(toy_shape(), deterministic=True)
    assert sizes(repeats, last=False) == [2 * 32 * MIB]
    experts = gemm_workspaces(moe_shape(**GROUPED), (ModelChunk(MOE.layer_kinds),), gpu)
    assert [term.num_bytes for term in experts] == [te, 4 * te]
    dense = gemm_workspaces(moe_shape(**GROUPED), held(), gpu)
    assert [term.num_bytes for term in dense] == [te]


def test_hipblas_has_workspaces_of_its_own() -> None:
    """128 MiB on gfx942 and gfx950 (pytorch CublasHandlePool.cpp), one of each thread."""
    (term,) = gemm_workspaces(toy_shape(), held(), load_gpu("MI300X"))
    assert (term.name, term.num_bytes) == ("hipBLAS workspaces", 2 * 128 * MIB)


def test_a_stage_has_all_of_them_each_with_its_source() -> None:
    shape = toy_shape(**TE, gradient_accumulation_fusion=True)
    terms = stage_buffers(shape, held(copies=2, last=True), H100)
    assert ", ".join(term.name for term in terms) == (
        "global gather buffer, rotary frequencies, dummy weight gradients, cuBLAS workspaces, "
        "TE GEMM workspace"
    )
    assert all(term.source and term.num_bytes > 0 for term in terms)
