"""`tuning.KEY`: which parameters of a model are trained, and how the others are stored."""

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.rule import Rule, refusals, refuse


class Adapter(StrEnum):
    """Low-rank matrices that are trained in place of a linear layer's weight: LoRA (arXiv
    2106.09685), with rsLoRA's scale the same in memory, or DoRA (arXiv 2402.09353), which has the
    norm of each row as well."""

    NONE = "none"
    LORA = "lora"
    DORA = "dora"


class StoredAs(StrEnum):
    """Type of the linear layers' frozen weights: the model's own, or bitsandbytes' (load_in_8bit,
    load_in_4bit: QLoRA, arXiv 2305.14314)."""

    AS_LOADED = "as_loaded"
    INT8 = "int8"
    NF4 = "nf4"


EMBEDDINGS: Final = ("embed_tokens", "wte", "word_embeddings", "embedding")
OUTPUT_LAYERS: Final = ("lm_head", "output_layer")
"""Last names of the modules, in transformers and in Megatron."""

ALL_LINEAR: Final = "all-linear"
"""peft's word for all linear layers of the decoder, except the output layer."""


class Tuning(Struct, frozen=True, kw_only=True):
    """What is trained; as it stands, everything.

    Attributes:
        adapter: with one, the model's own parameters are frozen.
        rank: of its two matrices.
        num_adapters: how many a layer holds, of which a step trains one (prime-rl's
            max_concurrent_runs).
        target_modules: linear layers that have one, by their last names (transformers': q_proj, …,
            Megatron's: linear_qkv, …), or ``all-linear``.
        dropout: probability at the adapter's input, which costs a mask or a copy of it.
        adapter_dtype: of the adapter's weights; None: as the framework makes them.
        autocast: whether the model runs under torch.autocast (a Trainer's bf16: true), where fp32
            adapters of 16-bit layers compute in 16 bits.
        base_weights: type of the frozen linear layers.
        double_quantization: whether the scales of NF4 are in 8 bits (bnb_4bit_use_double_quant).
        quant_storage: type that packs NF4's weights (bnb_4bit_quant_storage). FSDP shards those of
            a floating one; without it they are bytes, which each GPU has whole.
        modules_to_save: modules outside the layers that are trained whole next to the adapter, by
            their last names (embed_tokens, lm_head).
        num_trainable_layers: only so many layers, the last ones, are trained (LLaMA-Factory's
            freeze); None: all.
        share_expert_adapters: whether the experts of a rank that compute together have one adapter,
            or one each (Megatron Bridge).
        normalize_moe_lora: whether an expert's rank is divided by the experts of a token (Bridge).
        sequence_parallel_input_regather: whether A keeps its own tokens under sequence parallelism
            and gathers the others again in the backward (Bridge, of linear_qkv and linear_fc1).
        cut_by_tokens: whether, under sequence parallelism, each TP rank has its own tokens between
            A and B, one of which is whole (ms-swift); Megatron Bridge gathers A's input.
        freeze_embedding, freeze_output: whether the ends are frozen.
        freeze_vision_model, freeze_vision_projection: of a model that sees (Bridge's names).
    """

    adapter: Adapter = Adapter.NONE
    rank: int = 16
    num_adapters: int = 1
    target_modules: tuple[str, ...] = (ALL_LINEAR,)
    dropout: float = 0.0
    adapter_dtype: DType | None = None
    autocast: bool = True
    base_weights: StoredAs = StoredAs.AS_LOADED
    double_quantization: bool = True
    quant_storage: DType | None = None
    modules_to_save: tuple[str, ...] = ()
    num_trainable_layers: int | None = None
    share_expert_adapters: bool = True
    normalize_moe_lora: bool = False
    sequence_parallel_input_regather: bool = False
    cut_by_tokens: bool = False
    freeze_embedding: bool = False
    freeze_output: bool = False
    freeze_vision_model: bool = False
    freeze_vision_projection: bool = False

    @property
    def has_adapter(self) -> bool:
        """Whether the model's own linear layers are frozen."""
        return self.adapter is not Adapter.NONE

    @property
    def packs_weights(self) -> bool:
        """Whether FSDP takes NF4's weights for floating ones."""
        is_float = self.quant_storage not in (None, DType.UINT8)
        return self.base_weights is StoredAs.NF4 and is_float

    @property
    def freezes_embedding(self) -> bool:
        """Whether the model's own embedding is frozen; modules_to_save have a copy that is not."""
        return self.freeze_embedding or self.trains_parts

    @property
    def freezes_output(self) -> bool:
        """The same of the output layer."""
        return self.freeze_output or self.trains_parts

    @property
    def trains_output(self) -> bool:
        """Whether the output layer, or a copy of it, is trained."""
        return not self.freezes_output or self.saves(*OUTPUT_LAYERS)

    @property
    def trains_parts(self) -> bool:
        """Whether only parts of layers are trained: no end, and no norm outside them."""
        return self.has_adapter or self.num_trainable_layers is not None

    def saves(self, *names: str) -> bool:
        """Whether the module of one of these names is trained whole next to the adapter: a copy of
        it, as peft 0.21.2 utils/other.py ModulesToSaveWrapper keeps the original."""
        return self.has_adapter and bool({*names} & {*self.modules_to_save})

    @property
    def trains_all(self) -> bool:
        """Whether no parameter is frozen, as in pre-training."""
        return replace(self, quant_storage=None) == FULL

    def __post_init__(self) -> None:
        refuse(_RULES.values(), self)


class _TuningRule(Rule[[Tuning]], frozen=True, kw_only=True):
    """A rule on what is trained."""

    names: ClassVar[tuple[str, ...]] = ("tuning",)


_RULES: Final = refusals(_TuningRule, "tuning")

FULL: Final = Tuning()
"""All parameters are trained."""
