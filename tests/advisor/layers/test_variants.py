"""Norms after attention and MLP, caps, chunks and layers without rotary positions, on the toy."""

from msgspec.structs import replace

from advisor.frameworks.megatron.plan import chunk_plan
from advisor.frameworks.megatron.setting import selective
from advisor.layers.operators import Module, Operator
from advisor.layers.transformer import embedding_operators, head_operators, transformer_layer
from advisor.models.layer_kind import DENSE, LayerKind, Mixer
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import AttentionBackend, NormPlacement
from advisor.models.variants import of_providers
from advisor.plan.flops import replayed_flops
from tests.advisor.toys import KEY, LLAMA, QUERY, SHARD, saved_bytes, toy_shape

POST = replace(LLAMA, norm_placement=NormPlacement.PRE_AND_POST)
CAPPED = replace(
    LLAMA,
    attention_backend=AttentionBackend.UNFUSED,
    attn_logit_softcapping=50.0,
    attention_softmax_in_fp32=False,
    masked_softmax_fusion=False,
)
LLAMA4 = replace(LLAMA, no_rope_freq=LayerPattern("4"), qk_l2_norm=True, attention_chunk_size=8)
BARE = DENSE._replace(rotary=False)
WINDOW = DENSE._replace(mixer=Mixer.SLIDING_WINDOW)
SCORES = 2 * (8 // 2) * 32 * 32 * 2


def added(changed: tuple[Operator, ...], plain: tuple[Operator, ...]) -> dict[str, int]:
    """Storages that are kept next to, or instead of, those of `plain`."""
    before = saved_bytes(plain)
    return {name: size for name, size in saved_bytes(changed).items() if name not in before}


def test_mlp_replays_the_norm_after_it() -> None:
    plan = chunk_plan(selective("mlp"), POST, (DENSE,), True)
    assert Module.POST_MLP_LAYERNORM in plan.segments[0].runs[0].modules
    assert replayed_flops(toy_shape(POST), plan) == replayed_flops(toy_shape(), plan)


def test_capped_scores_keep_a_tanh_and_a_window_its_mask() -> None:
    shape, plain = toy_shape(CAPPED), toy_shape(replace(CAPPED, attn_logit_softcapping=None))
    tanh = {"attention_scores_tanh": SCORES}
    assert added(transformer_layer(shape), transformer_layer(plain)) == tanh
    windowed = transformer_layer(toy_shape(CAPPED, window_size=8), WINDOW)
    assert added(windowed, transformer_layer(plain)) == tanh | {"sliding_window_mask": 32 * 32}


def test_capped_logits_and_scaled_embeddings() -> None:
    capped, plain = (head_operators(toy_shape(final_logit_softcapping=c)) for c in (30.0, None))
    assert added(capped, plain) == {"logits_tanh": plain[1].outputs[0].num_bytes}
    _, scale = embedding_operators(toy_shape(apply_embedding_scaling=True))
    assert scale.saved == ()
    assert scale.forward_bytes == 2 * SHARD


def test_layers_without_rotary_positions() -> None:
    kinds = LLAMA4.layer_kinds
    assert [kind.rotary for kind in kinds] == [True, True, True, False] * 2
    listed = replace(LLAMA4, no_rope_freq=LayerPattern("[1,0]*4")).layer_kinds
    assert [kind.rotary for kind in listed] == [False, True] * 4
    names = {operator.name for operator in transformer_layer(toy_shape(LLAMA4), BARE)}
    assert not names & {"rotary_pos_emb", "query_norm.norm", "cut_chunks"}


def _attention(chunk: int | None, kind: LayerKind = DENSE) -> dict[str, int]:
    layer = transformer_layer(toy_shape(LLAMA4, attention_chunk_size=chunk), kind)
    return {operator.name: operator.attention_flops for operator in layer}


def test_chunks_attend_within_themselves() -> None:
    whole, chunked = _attention(None), _attention(8)
    assert chunked["core_attention"] * 4 == whole["core_attention"]
    assert _attention(8, BARE)["core_attention"] == whole["core_attention"]
    assert set(chunked) - set(whole) == {"cut_chunks", "join_chunks"}
    assert set(_attention(32)) == set(whole)  # as long as the sequence: nothing is cut
    layers = [transformer_layer(toy_shape(LLAMA4, attention_chunk_size=c)) for c in (8, None)]
    assert added(*layers) == {"value_chunks": KEY, "core_attn_out_joined": QUERY}


def test_the_l2_norm_has_no_weight() -> None:
    norms = [o for o in transformer_layer(toy_shape(LLAMA4)) if o.module is Module.QK_LAYERNORM]
    assert [norm.weights for norm in norms] == [(), ()]


def test_what_no_option_of_megatron_lm_makes() -> None:
    assert list(of_providers(LLAMA)) == []
    assert list(of_providers(POST)) == ["norm_placement"]
    assert list(of_providers(LLAMA4)) == ["qk_l2_norm", "attention_chunk_size"]
