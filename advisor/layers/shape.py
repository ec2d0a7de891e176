"""Local sizes of one rank, which every operator's tensors are made of; and the weights that every
family of layers has alike: of norms, of the vocabulary."""

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.job.loss_head import LossHead
from advisor.job.tuning import EMBEDDINGS, FULL, OUTPUT_LAYERS, Tuning
from advisor.layers.operators import (
    Collective,
    CollectiveKind,
    Gemm,
    Group,
    Module,
    PoolSide,
    Tensor,
    Weight,
)
from advisor.models.layer_kind import LayerKind
from advisor.models.options import CpCommType, Normalization, PositionEmbedding, TransformerImpl
from advisor.models.spec import ModelSpec


class RankShape(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Model, batch and the degrees that cut tensors: the key under which layers are cached.

    Pipeline and data parallelism do not appear: they change how many layers and microbatches a
    rank has, not the shape of one. ``moe_load_imbalance``: tokens of the busiest expert-parallel
    rank over the mean. ``cp_all_to_all_size``: of the context-parallel ranks, those that exchange
    heads. ``transformer_engine``: its release, by which attention over them differs.
    ``main_grads_dtype``: of Megatron's gradient buffer. Where eager
    torch runs on one device alone, ``weight_grads_dtype`` is the type of the weights' gradients
    (None: that of the layers), and under ``adds_weight_grads`` each goes as soon as it is made: it
    is added to an earlier one, or its weight is stepped. ``use_liger_kernel``, ``tiled_mlp`` and
    ``eager_attention`` say how transformers' layers run (JobConfig); under ``autocast`` their
    weights and the residual stream are fp32, and linear layers compute on 16-bit copies.
    ``compiled_loss``: torch.compile fuses the loss, so that no logits in fp32 are in memory.
    ``sorts_routing_map``: whether an unfused permutation of tokens to experts sorts all pairs of
    them, or selects by a mask. ``scores_in_fp32``: whether a router's sigmoid is cast to the
    router's type at its end alone. ``copies_glu_value``: whether an unfused gated activation keeps
    a copy of its linear half. ``weighs_outputs``: whether probabilities multiply what experts give,
    not their activations. ``frees_last_depth``: whether logits and losses of the last
    depth of multi-token prediction go before the model's own logits come. ``holds_dispatched``:
    whether a schedule holds the tokens that experts get, whatever these keep of them.
    ``takes_any_layout``: whether the GPU's 8-bit GEMMs do without transposed operands.
    ``deterministic``: whether cuBLAS has the workspace that repeats to the bit. ``side``: of two
    pools, the one whose share of the layers this is; None is both. ``image_tokens``: tokens of a
    sequence that a vision tower makes of ``images`` images; ``flash_attention``: whether one kernel
    attends inside all of them (transformers' flash_attention_2 and 3). ``tuning`` and ``head``:
    what is trained, and how the loss is computed. ``masked``: whether transformers' attention takes
    a mask [b, 1, s, s], as rows hold several samples, or padding.
    """

    model: ModelSpec
    seq_length: int
    micro_batch_size: int
    precision: Precision = Precision.BF16
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    cp_comm_type: CpCommType = CpCommType.P2P
    cp_all_to_all_size: int = 1
    transformer_engine: tuple[int, int] = (2, 20)
    tp_comm_overlap: bool = False
    mean_packed_length: int | None = None
    masked: bool = False
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    moe_load_imbalance: float = 1.0
    main_grads_dtype: DType = DType.FP32
    weight_grads_dtype: DType | None = None
    adds_weight_grads: bool = False
    use_liger_kernel: bool = False
    tiled_mlp: bool = False
    eager_attention: bool = False
    autocast: bool = False
    compiled_loss: bool = False
    sorts_routing_map: bool = False
    scores_in_fp32: bool = False
    copies_glu_value: bool = True
    weighs_outputs: bool = False
    frees_last_depth: bool = False
    holds_dispatched: bool = False
    takes_any_layout: bool = False
    deterministic: bool = False
    side: PoolSide | None = None
    image_tokens: int = 0
    images: int = 1
    flash_attention: bool = False
    tuning: Tuning = FULL
    head: LossHead = LossHead()

    def of_kind(self, kind: LayerKind) -> "RankShape":
        """The shape that one kind of the model's layers sees (ModelSpec.of_kind)."""
        model = self.model.of_kind(kind)
        return self if model is self.model else replace(self, model=model)

    @property
    def under_checkpoint(self) -> "RankShape":
        """The shape that a layer sees that is recomputed whole: its adapters gather no input again
        (Megatron Bridge 0.6.2 peft/utils.py, _sequence_parallel_input_regather_eligibility)."""
        if not self.tuning.sequence_parallel_input_regather:
            return self
        return replace(self, tuning=replace(self.tuning, sequence_parallel_input_regather=False))

    @property
    def tower(self) -> "RankShape":
        """The shape that blocks of the vision tower see: the patches of all images of a microbatch
        in one row. Without images, as of one token."""
        tower = self.model.vision
        assert tower is not None, f"{self.model.name} has no tower"
        tokens = self.image_tokens * self.micro_batch_size or 1
        return replace(
            self,
            model=self.model.tower,
            seq_length=tokens * tower.patches_per_token,
            micro_batch_size=1,
            context_parallel_size=1,
            mean_packed_length=None,
            images=self.images * self.micro_batch_size,
            image_tokens=0,
        )

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.tensor_model_parallel_size

    @property
    def dtype(self) -> DType:
        """Type of activations outside 8-bit linear layers."""
        return self.precision.parameter_dtype

    @property
    def local_seq(self) -> int:
        """Sequence positions of one context-parallel rank."""
        return self.seq_length // self.context_parallel_size

    @property
    def attended_length(self) -> int:
        """Length of the sequences that attention sees: of packed ones, sum of squares / sum."""
        return min(self.seq_length, self.mean_packed_length or self.seq_length)

    @property
    def norm_seq(self) -> int:
        """Sequence positions in the norm and dropout regions: cut by TP under SP."""
        return self.local_seq // (self.tp if self.sequence_parallel else 1)

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch inside the tensor-parallel region."""
        return self.local_seq * self.micro_batch_size

    @property
    def local_heads(self) -> int:
        """Query heads of one rank."""
        return self.model.num_attention_heads // self.tp

    @property
    def local_groups(self) -> int:
        """Key/value heads of one rank; at least 1 (Megatron replicates them beyond)."""
        return max(1, self.model.num_query_groups // self.tp)

    def activation(self, name: str, *width: int) -> Tensor:
        """[seq_length / cp, micro_batch_size, width] in the tensor-parallel region."""
        return Tensor(name, (self.local_seq, self.micro_batch_size, *width), self.dtype)

    def hidden(self, name: str, dtype: DType | None = None) -> Tensor:
        """[seq_length / cp (/ tp under SP), micro_batch_size, hidden_size]."""
        shape = (self.norm_seq, self.micro_batch_size, self.model.hidden_size)
        return Tensor(name, shape, dtype or self.stream_dtype)

    @property
    def stream_dtype(self) -> DType:
        """Type of the hidden states between layers."""
        return DType.FP32 if self.autocast else self.dtype

    @property
    def per_layer_input_bytes(self) -> int:
        """Bytes of all layers' own inputs, or their gradient (hidden_size_per_layer_input)."""
        width = self.model.num_layers * (self.model.hidden_size_per_layer_input or 0)
        return self.tokens * width * self.stream_dtype.itemsize

    @property
    def shared_key_bytes(self) -> int:
        """Bytes of the keys and values that layers read of earlier ones (num_kv_shared_layers)."""
        kinds = dict.fromkeys(kind for kind in self.model.layer_kinds if kind.reuses_keys)
        read = (self.model.of_kind(kind).kv_projection_size for kind in kinds)
        return self.tokens * sum(read) * (self.stream_dtype.itemsize + self.dtype.itemsize)

    @property
    def gathered_hidden_bytes(self) -> int:
        """Bytes of [seq_length / cp, micro_batch_size, hidden_size]."""
        return self.tokens * self.model.hidden_size * self.dtype.itemsize

    @property
    def is_local(self) -> bool:
        """Whether layers are Megatron's own modules (transformer_impl local)."""
        return self.model.transformer_impl is TransformerImpl.LOCAL

    @property
    def quantizes(self) -> bool:
        """Whether the linear layers of this shape compute in 8 or 4 bits (Transformer Engine)."""
        return self.precision.is_quantized and not self.is_local

    def gemm(self, m: int, n: int, k: int, experts: int = 1) -> Gemm:
        """The GEMM of a linear layer inside a transformer layer, of `experts` one kernel each (TE
        2.20.2 pytorch/module/grouped_linear.py, and grouped_gemm of the older GroupedMLP)."""
        return self.with_main_grad(Gemm(m, n, k, self.quantizes, experts, experts))

    def with_main_grad(self, gemm: Gemm) -> Gemm:
        """`gemm` of a Megatron layer, which may add its weight's gradient to main_grad itself."""
        if not self.model.gradient_accumulation_fusion:
            return gemm
        return replace(gemm, main_grad_itemsize=self.main_grads_dtype.itemsize)

    def weight_gradient_bytes(self, elements: int) -> int:
        """A weight gradient's own tensor: none where the GEMM adds to main_grad itself."""
        return 0 if self.model.gradient_accumulation_fusion else elements * self.dtype.itemsize

    def main_grad_traffic(self, elements: int) -> int:
        """Bytes that are moved when such a tensor is added to its main_grad: it is read, the other
        read and written (megatron-core 0.16.1 distributed_data_parallel.py:440). Plain modules,
        which the native backend is predicted by, have none."""
        if self.model.gradient_accumulation_fusion or self.is_local:
            return 0
        return elements * (self.dtype.itemsize + 2 * self.main_grads_dtype.itemsize)

    @property
    def row_parallel_workspace(self) -> int:
        """Under SP: the output before its reduce-scatter, or its gradient after the all-gather."""
        return self.gathered_hidden_bytes if self.sequence_parallel else 0

    @property
    def gathers_gradient(self) -> bool:
        """Whether a row-parallel layer's gradient is gathered by a step of its own: under SP on the
        local spec. Transformer Engine gathers inside the layer, which holds both."""
        return self.sequence_parallel and self.is_local

    def column_parallel_forward(self, num_bytes: int | None = None) -> tuple[Collective, ...]:
        """All-gather of a column-parallel input under SP (Megatron layers.py).

        num_bytes: of the gathered input, here and below; None is a hidden state's."""
        if not self.sequence_parallel:
            return ()
        return self._over_tp(CollectiveKind.ALL_GATHER, num_bytes, overlapped=self.tp_comm_overlap)

    def column_parallel_backward(self, num_bytes: int | None = None) -> tuple[Collective, ...]:
        """Under SP the input's all-gather and the gradient's reduce-scatter, else an all-reduce.
        All run next to the weight- and data-gradient GEMMs (asynchronous in Megatron and TE)."""
        if not self.sequence_parallel:
            return self._over_tp(CollectiveKind.ALL_REDUCE, num_bytes, overlapped=True)
        return (
            *self._over_tp(CollectiveKind.ALL_GATHER, num_bytes, overlapped=True),
            *self._over_tp(CollectiveKind.REDUCE_SCATTER, num_bytes, overlapped=True),
        )

    def row_parallel_forward(self) -> tuple[Collective, ...]:
        """Reduce-scatter of a row-parallel output under SP, else an all-reduce."""
        if not self.sequence_parallel:
            return self._over_tp(CollectiveKind.ALL_REDUCE, overlapped=False)
        return self._over_tp(CollectiveKind.REDUCE_SCATTER, overlapped=self.tp_comm_overlap)

    def row_parallel_backward(self) -> tuple[Collective, ...]:
        """All-gather of the output's gradient under SP."""
        if not self.sequence_parallel:
            return ()
        return self._over_tp(CollectiveKind.ALL_GATHER, overlapped=self.tp_comm_overlap)

    def _over_tp(
        self, kind: CollectiveKind, num_bytes: int | None = None, *, overlapped: bool
    ) -> tuple[Collective, ...]:
        """One collective over the tensor-parallel ranks; none where there is one rank."""
        if self.tp == 1:
            return ()
        gathered = self.gathered_hidden_bytes if num_bytes is None else num_bytes
        return (Collective(kind, Group.TENSOR, gathered, overlapped),)


def norm_weights(shape: RankShape, name: str, width: int) -> tuple[Weight, ...]:
    """Scale [width] of a norm, and LayerNorm's bias."""
    scale = Weight(f"{name}.weight", (width,))
    if shape.model.normalization is Normalization.LAYER_NORM:
        return scale, Weight(f"{name}.bias", (width,))
    return (scale,)


def embedding_weights(shape: RankShape) -> tuple[Weight, ...]:
    """Word embeddings [padded vocabulary / tp, hidden_size]; learned positions are not cut, nor is
    what makes the layers' own inputs: embeddings, a projection and a norm."""
    model, tuning = shape.model, shape.tuning
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    weights = [Weight("word_embeddings.weight", (rows, model.hidden_size), True)]
    if model.position_embedding_type is PositionEmbedding.LEARNED:
        rows = model.max_position_embeddings
        weights.append(Weight("position_embeddings.weight", (rows, model.hidden_size)))
    weights += per_layer_weights(model)
    return _tuned(tuple(weights), weights[0], tuning.freezes_embedding, tuning.saves(*EMBEDDINGS))


def tied_weight_gradient(shape: RankShape) -> int:
    """A tied output layer's gradient tensor, which waits for the embedding's in the same pass; none
    where it is not trained."""
    weight = embedding_weights(shape)[0]
    if weight.frozen or not shape.model.share_embeddings_and_output_weights:
        return 0
    return shape.weight_gradient_bytes(weight.num_elements)


def _tuned(
    weights: tuple[Weight, ...], main: Weight, frozen: bool, saved: bool
) -> tuple[Weight, ...]:
    """`weights`, `frozen` or not, and of the `main` one a copy that is trained where it is
    `saved` whole."""
    copy = (replace(main, name=f"{main.name} (trained copy)"),) if saved else ()
    return (*(replace(one, frozen=True) for one in weights), *copy) if frozen else weights


def per_layer_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Embeddings of all layers together, the projection of the word embeddings, and its norm."""
    own, rows = model.hidden_size_per_layer_input, model.vocab_size_per_layer_input
    if own is None:
        return ()
    width = model.num_layers * own
    return (
        Weight("per_layer_embeddings.weight", (rows or model.vocab_size, width)),
        Weight("per_layer_model_projection.weight", (width, model.hidden_size), in_linear=True),
        Weight("per_layer_projection_norm.weight", (own,)),
    )


def output_weights(shape: RankShape, *, holds_embedding: bool) -> tuple[Weight, ...]:
    """Final norm, and the output layer unless it is the embedding of the same rank. Under
    multi-token prediction the norm is a member of the chunk with the last layer."""
    model, tuning, main = shape.model, shape.tuning, output_weight(shape)
    weights: tuple[Weight, ...] = ()
    if model.mtp_num_layers is None:
        weights += norm_weights(shape, Module.FINAL_LAYERNORM, model.hidden_size)
    if not (model.share_embeddings_and_output_weights and holds_embedding):
        weights += (main,)
    if tuning.freeze_output and not tuning.trains_parts:
        return tuple(replace(one, frozen=one == main) for one in weights)
    return _tuned(weights, main, tuning.trains_parts, tuning.saves(*OUTPUT_LAYERS))


def output_weight(shape: RankShape) -> Weight:
    """The output layer [padded vocabulary / tp, hidden_size]."""
    model = shape.model
    rows = model.padded_vocab_size(shape.tp) // shape.tp
    return Weight("output_layer.weight", (rows, model.hidden_size), True, True)


def trained_output_weight(shape: RankShape) -> Weight:
    """The same, frozen where neither it nor a copy of it is trained."""
    return replace(output_weight(shape), frozen=not shape.tuning.trains_output)
