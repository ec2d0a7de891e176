"""Vision towers of Qwen2.5-VL, Qwen3-VL and Qwen3-VL-MoE.

Source: transformers 5.23.0 models/qwen2_5_vl and models/qwen3_vl, run in tests/oracles. Patches of
all images of a microbatch are one row: [1, patches, hidden_size] here.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import (
    activation,
    hidden,
    linear,
    multiplied,
    nonlinearity,
    residual,
    with_weight_gradients,
)
from advisor.layers.family import VisionEnd
from advisor.layers.operators import (
    LAYER_INPUT,
    AttentionShape,
    ComputeUnit,
    Gemm,
    Module,
    Operator,
    Tensor,
    Weight,
    cached_operators,
)
from advisor.layers.shape import RankShape
from advisor.layers.transformers.norms import norm
from advisor.models.layer_kind import LayerKind, Mixer
from advisor.models.vision import VisionTower


def _tower(shape: RankShape) -> VisionTower:
    tower = shape.model.vision
    assert tower is not None, f"{shape.model.name} has no tower"
    return tower


@cached_operators
def vision_block(shape: RankShape, kind: LayerKind) -> tuple[Operator, ...]:
    """Operators of one block of the tower, `shape` being the tower's: norm1, attn, add, norm2, mlp,
    add."""
    source, between = hidden(shape, LAYER_INPUT), hidden(shape, "after_attention")
    normed, second = hidden(shape, "norm1_out"), hidden(shape, "norm2_out")
    branch, mlp_out = hidden(shape, "proj_out"), hidden(shape, "mlp_out")
    return (
        norm(shape, "norm1", Module.INPUT_LAYERNORM, source, normed),
        *_attention(shape, kind, normed, branch),
        residual("attention_residual", Module.SELF_ATTN_BDA, branch, source, between),
        norm(shape, "norm2", Module.PRE_MLP_LAYERNORM, between, second),
        *_mlp(shape, second, mlp_out),
        residual(
            "mlp_residual",
            Module.MLP_BDA,
            mlp_out,
            between,
            hidden(shape, "layer_output"),
            (source,),
        ),
    )


def _attention(
    shape: RankShape, kind: LayerKind, source: Tensor, output: Tensor
) -> tuple[Operator, ...]:
    """One projection, of which q, k and v are views; rotary positions in fp32; attention inside
    windows or images, a kernel each, whose outputs are put together, or one kernel for all."""
    width = shape.model.hidden_size
    mixed = activation(shape, "qkv_out", 3 * width)
    query, key, value = (mixed.view(name, source.shape) for name in ("query", "key", "value"))
    wide = replace(query, base=None, dtype=DType.FP32).num_bytes
    turned = tuple(Tensor(f"{t.name}_rope", t.shape, t.dtype) for t in (query, key))
    attended = activation(shape, "attended", width)
    core = attended if shape.flash_attention else activation(shape, "attended_by_window", width)
    rows = shape.model.num_attention_heads * shape.seq_length
    tower, seen = _tower(shape), shape.seq_length // shape.images
    if kind.mixer is Mixer.SLIDING_WINDOW:
        seen = min(seen, tower.window_patches or seen)
    flops = 4 * shape.seq_length * seen * width
    lse = Tensor("softmax_lse", (1, shape.model.num_attention_heads, shape.seq_length), DType.FP32)
    operators = [
        linear(shape, "qkv", Module.LINEAR_QKV, source, mixed, bias=True),
        Operator("qkv.unbind", Module.LINEAR_QKV, (mixed,), (query, key, value)),
        Operator(
            "rotary",
            Module.ROTARY,
            (query, key),
            turned,
            forward_workspace=5 * wide,
            backward_workspace=3 * wide,
            extra_forward_bytes=16 * wide,
            extra_backward_bytes=24 * wide,
            forward_kernels=14,
            backward_kernels=22,
        ),
        Operator(
            "core_attention",
            Module.CORE_ATTENTION,
            (*turned, value),
            (core,),
            unit=ComputeUnit.ATTENTION,
            saved=(*turned, value, core, lse),
            attention_flops=flops,
            attention=AttentionShape(
                rows=rows,
                longest=2 * seen,  # no half of the scores is masked
                qk_channels=shape.model.kv_channels,
                v_channels=shape.model.kv_channels,
            ),
        ),
    ]
    if not shape.flash_attention:
        operators.append(Operator("cat", Module.CORE_ATTENTION, (core,), (attended,)))
    held = (source, query, key, value, *turned, core)
    proj = linear(shape, "proj", Module.LINEAR_PROJ, attended, output, bias=True, holds=held)
    return (*operators, proj)


def _mlp(shape: RankShape, source: Tensor, output: Tensor) -> tuple[Operator, ...]:
    """down_proj(act(gate_proj x) * up_proj x), or linear_fc2(act(linear_fc1 x))."""
    model, width = shape.model, shape.model.ffn_hidden_size
    gated = model.activation.gated
    names = ("gate_proj", "down_proj") if gated else ("linear_fc1", "linear_fc2")
    first, activated = (activation(shape, name, width) for name in (f"{names[0]}_out", "act_out"))
    operators = [
        linear(shape, names[0], Module.LINEAR_FC1, source, first, bias=True),
        *nonlinearity(model.activation, first, activated),
    ]
    if gated:
        up, product = activation(shape, "up_proj_out", width), activation(shape, "product", width)
        operators += [
            linear(shape, "up_proj", Module.LINEAR_FC1, source, up, bias=True),
            multiplied(activated, up, product),
        ]
        activated = product
    down = linear(shape, names[1], Module.LINEAR_FC2, activated, output, bias=True, holds=(source,))
    return (*operators, down)


def vision_end(shape: RankShape, end: VisionEnd) -> tuple[Operator, ...]:
    """Either end of the tower of the model of `shape`."""
    return patch_embedding(shape) if end is VisionEnd.PATCH_EMBEDDING else projector(shape)


@cached_operators
def patch_embedding(shape: RankShape) -> tuple[Operator, ...]:
    """A convolution of patches, [patches, patch_width] in 16 bits, learned positions where the
    tower has them, and cos and sin of rotary ones in fp32, which all blocks share. Qwen2.5-VL sorts
    patches and angles by window, by an index."""
    tower, inner = _tower(shape), shape.tower
    pixels = activation(inner, "pixels", tower.patch_width)
    embedded, output = hidden(inner, "patch_embed_out"), hidden(inner, "tower_input")
    size = tower.hidden_size, tower.patch_width
    weights = [Weight("patch_embed.proj.weight", size)]
    if tower.patch_bias:
        weights.append(Weight("patch_embed.proj.bias", (tower.hidden_size,)))
    convolution = Operator(
        "patch_embed",
        Module.PATCH_EMBEDDING,
        (pixels,),
        (embedded,),
        unit=ComputeUnit.GEMM,
        saved=(pixels,),
        saved_for_weights=frozenset({pixels.name}),
        weights=tuple(weights),
        gemm=Gemm(inner.tokens, *size),
        gradient_free_inputs=frozenset({pixels.name}),
    )
    angles = (1, inner.seq_length, tower.hidden_size // tower.num_attention_heads)
    tables = tuple(Tensor(f"vision_{name}", angles, DType.FP32) for name in ("cos", "sin"))
    last = Operator("sort_patches", Module.PATCH_EMBEDDING, (embedded,), (output,), saved=tables)
    if tower.num_position_embeddings is not None:
        four = Tensor("corners", (inner.seq_length, 4), DType.INT64)
        parts = Tensor("corner_weights", (inner.seq_length, 4, 1), inner.dtype)
        table = Weight("pos_embed.weight", (tower.num_position_embeddings, tower.hidden_size))
        added = replace(
            last,
            name="pos_embed",
            saved=(*tables, four, parts),
            weights=(table,),
            forward_workspace=5 * output.num_bytes,
            backward_workspace=4 * output.num_bytes,
        )
        last = with_weight_gradients(inner, added)
    elif tower.window_size is not None:
        order = Tensor("window_index", (inner.seq_length // tower.patches_per_token,), DType.INT64)
        last = replace(last, saved=(*tables, order))
    return with_weight_gradients(inner, convolution), last


@cached_operators
def projector(shape: RankShape) -> tuple[Operator, ...]:
    """The merger, those of deepstack_layers, and the tokens that it makes put among those of the
    text: masked_scatter keeps the mask, and the text's embeddings lie next to it."""
    tower, inner = _tower(shape), shape.tower
    source, joined = hidden(inner, "tower_output"), hidden(shape, LAYER_INPUT)
    merged, operators = _merger(shape, "merger", source, deep=False)
    if tower.window_size is not None:
        sorted_back = Tensor("merged.sorted", merged.shape, merged.dtype)
        order = Tensor("reverse_indices", merged.shape[:2], DType.INT64)
        place = Module.PROJECTOR
        back = Operator("sort_tokens", place, (merged,), (sorted_back,), saved=(order,))
        operators, merged = (*operators, back), sorted_back
    deep: list[Tensor] = []
    for number in range(len(tower.deepstack_layers)):
        name = f"deepstack_merger.{number}"
        elsewhere = Tensor(f"{name}.input", (0, *source.shape[1:]), source.dtype)
        features, its = _merger(shape, name, elsewhere, deep=True)
        operators, deep = (*operators, *its), [*deep, features]
    tokens = Tensor("image_embeds", merged.shape, merged.dtype)
    mask = Tensor("image_mask", (*joined.shape[:2], 1), DType.BOOL)
    return (
        *operators,
        Operator("image_embeds", Module.PROJECTOR, (merged,), (tokens,)),
        Operator(
            "masked_scatter",
            Module.PROJECTOR,
            (tokens, *deep),  # which the decoder's first layers add to theirs
            (joined,),
            saved=(mask,),
            backward_workspace=joined.num_bytes,
        ),
    )


def _merger(
    shape: RankShape, name: str, source: Tensor, *, deep: bool
) -> tuple[Tensor, tuple[Operator, ...]]:
    """Norm, linear layer, GELU, linear layer to the decoder's width, over patches_per_token patches
    each; a `deep` one norms them together. Its source is kept elsewhere."""
    tower, inner = _tower(shape), shape.tower
    wide = tower.hidden_size * tower.patches_per_token
    tokens, place = inner.seq_length // tower.patches_per_token, Module.PROJECTOR

    def tensor(what: str, width: int) -> Tensor:
        return Tensor(f"{name}.{what}", (1, tokens, width), inner.dtype)

    normed, first, activated = (tensor(what, wide) for what in ("norm_out", "fc1_out", "act_out"))
    of_norm = Tensor(source.name, (1, tokens, wide), source.dtype) if deep else source
    made = norm(inner, f"{name}.norm", place, of_norm, normed)
    if deep:
        kept = tuple(one for one in made.saved if one.name != source.name)
        made = replace(made, inputs=(source,), saved=kept)
    output = tensor("fc2_out", shape.model.hidden_size)
    return output, (
        made,
        linear(inner, f"{name}.linear_fc1", place, normed, first, bias=True),
        Operator(f"{name}.act", place, (first,), (activated,), saved=(first,)),
        linear(inner, f"{name}.linear_fc2", place, activated, output, bias=True),
    )
