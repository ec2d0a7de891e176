"""The shape of a GPT-style transformer, in Megatron's names."""

from functools import lru_cache

from msgspec.structs import replace

from advisor.models import checks, layer_kind, model_fields, options
from advisor.models.layer_kinds import layer_kinds


class ModelSpec(model_fields.ModelFields, frozen=True, kw_only=True):
    """A model: fields that were checked against each other, and sizes that follow from them."""

    def __post_init__(self) -> None:
        checks.check_model(self)

    def __hash__(self) -> int:
        """Cheap: models of one name and depth rarely differ."""
        return hash((self.name, self.num_layers, self.hidden_size))

    def of_kind(self, kind: layer_kind.LayerKind) -> "ModelSpec":
        """The model that one kind of its layers sees: kv_channels and num_query_groups are theirs,
        attention_k_eq_v says whether their keys are values, and ffn_hidden_size is doubled for
        those that reuse keys under use_double_wide_mlp."""
        return self if self.global_kv_channels is None else _of_kind(self, kind)

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together: num_attention_heads x kv_channels."""
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_projection_size(self) -> int:
        """Width of all key (or value) heads together: num_query_groups x kv_channels."""
        return self.num_query_groups * self.kv_channels

    @property
    def qk_channels(self) -> int:
        """Width of one query or key head in core attention."""
        if self.multi_latent_attention:
            return self.qk_head_dim + self.qk_pos_emb_head_dim
        return self.kv_channels

    @property
    def v_channels(self) -> int:
        """Width of one value head, and of core attention's output."""
        return self.v_head_dim if self.multi_latent_attention else self.kv_channels

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated."""
        if self.multi_latent_attention:
            return self.qk_pos_emb_head_dim
        return int(self.kv_channels * self.rotary_percent)

    def fc1_size_of(self, ffn_hidden_size: int) -> int:
        """Output width of an MLP's linear_fc1: twice the MLP's where the activation is gated."""
        return ffn_hidden_size * (2 if self.activation.gated else 1)

    @property
    def layer_kinds(self) -> tuple[layer_kind.LayerKind, ...]:
        """The kind of every layer, in order."""
        return layer_kinds(self)

    @property
    def tower(self) -> "ModelSpec":
        """The blocks of the vision tower as a model of their own."""
        return _tower(self)

    @property
    def tower_kinds(self) -> tuple[layer_kind.LayerKind, ...]:
        """The kind of every block of the tower, in order; none without one."""
        tower = self.vision
        if tower is None:
            return ()
        full = range(tower.num_layers) if tower.window_size is None else tower.full_attention_layers
        window, whole = layer_kind.Mixer.SLIDING_WINDOW, layer_kind.Mixer.FULL
        mixers = (whole if number in full else window for number in range(tower.num_layers))
        return tuple(layer_kind.LayerKind(mixer, role=layer_kind.Role.VISION) for mixer in mixers)

    @property
    def expert_ffn_hidden_size(self) -> int:
        """Width of one routed expert: moe_ffn_hidden_size, or Megatron's default for it."""
        return self.moe_ffn_hidden_size or self.ffn_hidden_size

    @property
    def flex_backend(self) -> options.FlexBackend | None:
        """The library that brings tokens to experts; None: NCCL's collectives do."""
        flex = self.moe_token_dispatcher_type is options.TokenDispatcher.FLEX
        return self.moe_flex_dispatcher_backend if flex else None

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary rounded up as Megatron does (training/tokenizer: vocab_size_with_padding)."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


@lru_cache(maxsize=256)
def _of_kind(model: ModelSpec, kind: layer_kind.LayerKind) -> ModelSpec:
    ffn_hidden_size = model.ffn_hidden_size * (1 + (kind.reuses_keys and model.use_double_wide_mlp))
    if kind.mixer is not layer_kind.Mixer.FULL:
        return replace(model, attention_k_eq_v=False, ffn_hidden_size=ffn_hidden_size)
    return replace(
        model,
        ffn_hidden_size=ffn_hidden_size,
        kv_channels=model.global_kv_channels or model.kv_channels,
        num_query_groups=model.num_global_query_groups or model.num_query_groups,
    )


@lru_cache(maxsize=64)
def _tower(model: ModelSpec) -> ModelSpec:
    tower = model.vision
    assert tower is not None, f"{model.name} has no tower"
    heads = tower.num_attention_heads
    return ModelSpec(
        name=f"{model.name} vision tower",
        num_layers=tower.num_layers,
        hidden_size=tower.hidden_size,
        ffn_hidden_size=tower.ffn_hidden_size,
        num_attention_heads=heads,
        num_query_groups=heads,
        kv_channels=tower.hidden_size // heads,
        vocab_size=1,
        max_position_embeddings=model.max_position_embeddings,
        normalization=tower.normalization,
        activation=tower.activation,
        add_bias_linear=True,
        add_qkv_bias=True,
        transformer_impl=model.transformer_impl,
        attention_backend=model.attention_backend,
        gradient_accumulation_fusion=False,
        make_vocab_size_divisible_by=1,
        vision=tower,
    )
