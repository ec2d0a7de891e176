import pytest

from advisor.base.dtypes import DType
from advisor.layers.parameters import count_parameters
from advisor.layers.transformer import transformer_layer
from advisor.memory.static import layer_elements, num_elements, stage_elements, static_memory
from advisor.models.spec import ModelSpec
from tests.advisor.toys import GPT, LLAMA, held, toy_shape

WORDS = 504 * 64  # 1000 padded to 1008, over two ranks


def test_elements_of_a_layer() -> None:
    """Two norms, qkv [64, 64], proj [64, 32], fc1 [128, 64], fc2 [64, 64] of TP 2."""
    assert layer_elements(toy_shape()) == 2 * 64 + 64 * 64 + 64 * 32 + 128 * 64 + 64 * 64


def test_ends_of_the_pipeline() -> None:
    shape, layer = toy_shape(), layer_elements(toy_shape())
    assert stage_elements(shape, held(3, first=False, last=False)) == 3 * layer
    assert stage_elements(shape, held(3, first=True, last=False)) == 3 * layer + WORDS
    assert stage_elements(shape, held(3, first=False, last=True)) == 3 * layer + WORDS + 64
    assert stage_elements(shape, held(3, first=True, last=True)) == 3 * layer + 2 * WORDS + 64


def test_tied_embeddings_are_one_tensor_on_one_stage_and_two_on_two() -> None:
    shape = toy_shape(share_embeddings_and_output_weights=True)
    layer = layer_elements(shape)
    assert stage_elements(shape, held(3, first=True, last=True)) == 3 * layer + WORDS + 64
    assert stage_elements(shape, held(3, first=False, last=True)) == 3 * layer + WORDS + 64


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=lambda model: model.name)
def test_one_rank_of_one_holds_every_parameter(model: ModelSpec) -> None:
    shape = toy_shape(model, tensor_model_parallel_size=1, sequence_parallel=False)
    padding = (model.padded_vocab_size(1) - model.vocab_size) * 64 * 2
    elements = stage_elements(shape, held(model.num_layers, first=True, last=True))
    assert elements - padding == count_parameters(model)


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=lambda model: model.name)
def test_tensor_parallelism_cuts_what_is_marked(model: ModelSpec) -> None:
    alone = toy_shape(model, tensor_model_parallel_size=1, sequence_parallel=False)
    for one, two in zip(transformer_layer(alone), transformer_layer(toy_shape(model)), strict=True):
        for whole, part in zip(one.weights, two.weights, strict=True):
            parts = 2 if part.tp_sharded else 1
            assert whole.num_elements == parts * part.num_elements, whole.name
    assert num_elements(()) == 0


def test_bytes_of_weights_gradients_and_optimizer() -> None:
    memory = static_memory(1000, 1, DType.FP32)
    assert (memory.weights, memory.gradients, memory.optimizer) == (2000, 4000, 12000)
    assert memory.total == 18000
    assert static_memory(1000, 1, DType.BF16).gradients == 2000
    assert static_memory(1000, 8, DType.FP32).optimizer == 1500
    assert static_memory(1000, 7, DType.FP32).optimizer == 1715  # rounded up
