"""Adapters and frozen layers of Megatron under Transformer Engine, which no oracle here runs: what
its sources (2.20.2) and those of the adapters say."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.megatron import buffers
from advisor.hardware.catalogue import load_gpu
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.job.tuning import Adapter, Tuning
from advisor.layers.operators import CollectiveKind, Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import embedding_operators, head_operators, transformer_layer
from advisor.memory.liveness import layer_kept_bytes
from advisor.memory.static import stage_elements, static_memory, trained_elements
from advisor.models.presets import load_model

LORA = Tuning(adapter=Adapter.LORA, rank=16)
OWN = replace(LORA, cut_by_tokens=True)
GATHERED, SHARD = 4096 * 8192 * 2, 1024 * 8192 * 2


def shape_of(tuning: Tuning, name: str = "llama3_70b", **more) -> RankShape:
    degrees = {"tensor_model_parallel_size": 4, "sequence_parallel": True}
    fields = {"seq_length": 4096, "micro_batch_size": 1, **degrees, **more}
    return RankShape(model=load_model(name), tuning=tuning, **fields)


def of_layer(tuning: Tuning, name: str = "llama3_70b", **more) -> dict[str, Operator]:
    shape = shape_of(tuning, name, **more)
    return {one.name: one for one in transformer_layer(shape, shape.model.layer_kinds[-1])}


def kept(operator: Operator) -> list[int]:
    return [tensor.num_bytes for tensor in operator.saved]


def test_a_joined_norm_keeps_its_own_part_next_to_the_gathered_input_of_a() -> None:
    layer = of_layer(LORA)
    base, first = layer["linear_qkv"], layer["linear_qkv.linear_in"]
    assert kept(base) == [SHARD]
    assert kept(first) == [GATHERED]
    assert base.outputs[-1] == first.inputs[0]
    assert all(weight.frozen for weight in base.weights)


def test_without_an_adapter_a_frozen_layer_keeps_no_input() -> None:
    layer = of_layer(replace(LORA, target_modules=("linear_qkv",)))
    assert layer["linear_fc1"].saved == ()
    assert layer["linear_fc2"].saved == ()
    assert kept(layer["linear_proj"]) == []


def test_a_frozen_layer_gathers_no_input_again() -> None:
    whole, still = of_layer(Tuning())["linear_fc1"], of_layer(LORA)["linear_fc1"]
    kinds = [one.kind for one in still.backward_collectives]
    assert CollectiveKind.ALL_GATHER in [one.kind for one in whole.backward_collectives]
    assert kinds == [CollectiveKind.REDUCE_SCATTER]
    assert not still.backward_collectives[0].overlapped
    weight = 0 if still.gemm.main_grad_itemsize else still.weights[0].num_elements * 2
    assert whole.backward_workspace - still.backward_workspace == GATHERED + weight


def test_regathering_keeps_the_own_part_alone() -> None:
    again = of_layer(replace(LORA, sequence_parallel_input_regather=True))
    first = again["linear_qkv.linear_in"]
    assert first.saved == again["linear_qkv"].saved
    assert first.forward_collectives[0].num_bytes == GATHERED
    assert kept(again["linear_fc2.linear_in"]) == [4096 * 28672 // 4 * 2]


def test_only_lora_regathers() -> None:
    again = replace(LORA, sequence_parallel_input_regather=True)
    dora = of_layer(replace(again, adapter=Adapter.DORA))
    assert kept(dora["linear_qkv.linear_in"]) == [GATHERED]
    parts = of_layer(replace(again, target_modules=("linear_q", "linear_k", "linear_v")))
    assert kept(parts["linear_qkv.linear_k.linear_in"]) == [GATHERED]


def test_adapters_cut_by_tokens_gather_nothing_wide() -> None:
    layer = of_layer(OWN)
    assert layer["linear_qkv.linear_in"].saved == layer["linear_qkv"].saved
    low = layer["linear_qkv.linear_out"]
    assert low.inputs[0].shape == (1024, 1, 16)
    assert low.outputs[0].shape[0] == 4096
    assert layer["linear_proj.linear_out"].outputs[0].shape == (1024, 1, 8192)
    assert layer["linear_qkv.linear_in"].weights[0].shape == (16, 8192)


def test_inside_a_checkpoint_nothing_is_gathered_again() -> None:
    shape = shape_of(replace(LORA, sequence_parallel_input_regather=True))
    assert shape.under_checkpoint == shape_of(LORA)
    assert shape_of(LORA).under_checkpoint == shape_of(LORA)


def test_eight_bits_keep_a_copy_next_to_what_a_reads() -> None:
    layer = of_layer(LORA, precision=Precision.FP8_CURRENT)
    assert kept(layer["linear_qkv"]) == [SHARD // 2]
    assert kept(layer["linear_qkv.linear_in"]) == [GATHERED]
    assert not layer["linear_qkv.linear_in"].gemm.quantized


@pytest.mark.parametrize(("own", "copies"), [(False, 1), (True, 8)])
def test_grouped_experts_share_an_adapter_or_have_one_each(own: bool, copies: int) -> None:
    """And those that are cut by tokens have always their own."""
    degrees = {"tensor_model_parallel_size": 1, "sequence_parallel": False}
    for tuning in (replace(LORA, share_expert_adapters=not own), replace(LORA, cut_by_tokens=own)):
        layer = of_layer(tuning, "mixtral_8x7b", **degrees)
        first = layer["experts.linear_fc1.linear_in"]
        assert first.weights[0].copies == copies
        assert first.weights[0].expert
        assert first.saved == (layer["experts.linear_fc1"].inputs[0],)
    assert of_layer(LORA, "mixtral_8x7b", **degrees)["router"].saved


def test_the_rank_of_an_expert() -> None:
    layer = of_layer(replace(LORA, normalize_moe_lora=True), "mixtral_8x7b")
    assert layer["experts.linear_fc1.linear_in"].weights[0].shape[0] == 8
    assert layer["linear_qkv.linear_in"].weights[0].shape[0] == 16 // 4


def test_dora_scales_with_a_trained_magnitude() -> None:
    layer = of_layer(replace(LORA, adapter=Adapter.DORA))
    magnify = layer["linear_qkv.magnify"]
    assert [weight.shape for weight in magnify.weights] == [(10240 // 4,)]
    assert magnify.saved[0].shape == (4096, 1, 10240 // 4)
    assert layer["linear_qkv.plus"].outputs[0].name == "mixed_qkv"


def test_the_embedding_and_the_output_layer_of_a_frozen_model() -> None:
    (lookup,) = embedding_operators(shape_of(LORA))
    assert lookup.no_grad
    assert lookup.saved == ()
    output = next(one for one in head_operators(shape_of(LORA)) if one.name == "output_layer")
    assert output.saved == ()
    saved = replace(LORA, modules_to_save=("word_embeddings", "output_layer"))
    assert not embedding_operators(shape_of(saved))[0].no_grad
    tied = Tuning(freeze_embedding=True)
    (head,) = (x for x in head_operators(shape_of(tied, "qwen3_0.6b")) if x.weights[-1:] and x.gemm)
    assert head.saved == ()


def test_only_what_is_trained_has_buffers() -> None:
    whole, shape = shape_of(Tuning()), shape_of(LORA)
    (held,) = pipeline_stages(shape.model, ParallelLayout())
    names = [term.name for term in buffers.process_buffers(shape, held)]
    assert "global gather buffer" in [x.name for x in buffers.process_buffers(whole, held)]
    assert "global gather buffer" not in names
    again = shape_of(replace(LORA, sequence_parallel_input_regather=True))
    assert "global gather buffer" in [x.name for x in buffers.process_buffers(again, held)]
    assert buffers.dummy_weight_gradients(shape, held) < buffers.dummy_weight_gradients(whole, held)
    middle = tuple(replace(one, head=False, embedding=False) for one in held)
    gpu = load_gpu("H100")
    own = len(buffers.gemm_workspaces(shape_of(OWN), middle, gpu))
    assert len(buffers.gemm_workspaces(shape, middle, gpu)) == own + 1


def test_gradients_and_states_of_what_is_trained() -> None:
    found = static_memory(1000, 4, DType.FP32, trained=40)
    assert (found.weights, found.gradients, found.optimizer) == (2000, 160, 120)
    assert found.frozen == 1920
    shape = shape_of(LORA, "mixtral_8x7b")
    (held,) = pipeline_stages(shape.model, ParallelLayout())
    trained, of_experts = trained_elements(shape, held)
    assert 0 < of_experts < trained < stage_elements(shape, held)


def test_adapters_keep_more_under_sequence_parallelism_than_full_training() -> None:
    """The gathered inputs of linear_qkv and linear_fc1; what is kept of frozen layers goes."""
    full, adapted, again = (
        layer_kept_bytes(transformer_layer(shape_of(tuning)), ())
        for tuning in (Tuning(), LORA, replace(LORA, sequence_parallel_input_regather=True))
    )
    low = 4 * 4096 * 16 * 2
    assert adapted == full + 2 * GATHERED + low
    assert again == full + low


def test_latent_attention_gathers_for_its_up_projections() -> None:
    layer = of_layer(LORA, "deepseek_v3")
    assert layer["linear_q_up_proj.linear_in"].inputs[0].shape == (4096, 1, 1536)
    down = layer["linear_q_down_proj.linear_in"]
    assert down.inputs[0].shape[0] == 1024
    assert down.module is Module.QKV_DOWN_PROJ
