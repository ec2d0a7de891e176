"""Heads in chunks, of tokens, of the vocabulary or of both: no tensor has all logits.

Sources: trl 1.16.0 kernels/chunked_logprob.py; liger-kernel 0.8.5 chunked_loss; verl 0.9.1
utils/experimental/torch_functional.py and utils/kernel/kernels.py; prime-rl 559b447 lm_head.py;
nemo-automodel 0.7.0 components/loss/chunked_ce.py and linear_ce.py; torchtitan 0.3.0
components/loss.py; NeMo-RL 7ea279a distributed/model_utils.py. tests/oracles/test_heads.py runs
them. Bytes an element of a chunk are of what its arithmetic has alive at once.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.heads.pieces import FP32, INT64, InChunks, Sizes, in_chunks, of_tokens, sizes
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.layers.weights import output_weight

_TRL = (4096, 32768)
_LIGER_GRPO = (2048, 4096)
_PRIME_RL = (8192, 8192)
"""Tokens and rows of the vocabulary in a tile."""
_PRIME_RL_ROWS = 2048
_VERL_SPLIT, _VERL_STATISTICS = 9504, 1024
"""Rows of the vocabulary in a part of the backward, and of the forward's statistics."""


def _chunk(shape: RankShape, usual: int) -> int:
    return min(shape.tokens, shape.head.chunk_size or usual)


def _gradient(shape: RankShape, size: Sizes) -> int:
    """Of the weight, in its own type."""
    return 0 if output_weight(shape).frozen else size.weight * size.wide


def trl(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Positions that have a label are copied out, here all of them. One tile in the type of the
    computation serves for logits and their gradient; gradients add up in fp32 and are cast."""
    size = sizes(shape)
    copied = Tensor("labelled_positions", (size.tokens, size.hidden), source.dtype)
    indices = of_tokens(shape, "label_indices", DType.INT64, 2)
    positions = Operator(
        "labelled_positions", Module.OUTPUT_LAYER, (source,), (copied,), saved=(indices,)
    )
    kept = [copied, of_tokens(shape, "targets", DType.INT64), of_tokens(shape, "log_z")]
    if shape.head.entropy:
        kept.append(of_tokens(shape, "kept_entropy"))
    tokens, rows = _chunk(shape, _TRL[0]), _TRL[1]
    tile = tokens * rows * size.narrow
    if source.dtype is DType.FP32:  # casts of both operands
        tile += (tokens + min(rows, size.vocabulary)) * size.hidden * size.narrow
    added = size.tokens * size.hidden * FP32
    own = _gradient(shape, size)
    cast = 0 if source.dtype is DType.FP32 else size.weight * FP32 * bool(own)
    work = InChunks(
        forward=(tile + 6 * size.tokens * FP32,),
        backward=(tile + (0 if source.dtype is DType.FP32 else added) + cast + own,),
        chunks=-(-size.tokens // tokens),
        added=2 * FP32,
    )
    last = in_chunks(shape, "chunked_log_probabilities", copied, tuple(kept), work)
    return positions, replace(last, forward_holds=(source,))


def prime_rl(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Tiles of tokens and vocabulary in Python, whose variables live into the next tile."""
    return _in_tiles(shape, source, _chunk(shape, _PRIME_RL[0]), _PRIME_RL[1])


def prime_rl_vocabulary(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """The same in chunks of the vocabulary, each of all tokens."""
    return _in_tiles(shape, source, shape.tokens, shape.head.chunk_size or _PRIME_RL_ROWS)


def _in_tiles(shape: RankShape, source: Tensor, tokens: int, rows: int) -> tuple[Operator, ...]:
    size = sizes(shape)
    columns = min(rows, size.vocabulary)
    tile, more = tokens * columns, size.vocabulary > columns or size.tokens > tokens
    own = _gradient(shape, size)
    part = columns * size.hidden * size.wide * bool(own)
    work = InChunks(
        forward=(tile * (size.narrow + 3 * FP32),),
        backward=(
            own + part * more + tile * (size.narrow + (5 if more else 3) * FP32),
            own + part * (1 + more) + tile * (2 * size.narrow + 3 * FP32),
        ),
        passes=(50, 58),
        block=tile * FP32,
        chunks=-(-size.tokens // tokens),
        added=3 * size.wide,
    )
    kept = (source, of_tokens(shape, "inv_temperature"), of_tokens(shape, "log_z"))
    return (in_chunks(shape, "fused_output_linear", source, kept, work),)


def verl_fused(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Chunks of tokens in torch; each makes a gradient of the whole weight, frozen or not, next to
    the one before it."""
    size, tokens = sizes(shape), _chunk(shape, 512)
    chunk, own = tokens * size.vocabulary, _gradient(shape, size)
    made = (size.weight + tokens * size.hidden) * size.wide
    before = made * (size.tokens > tokens)
    entropy = 2 if shape.head.entropy else 0
    work = InChunks(
        forward=(chunk * 3 * FP32,),
        backward=(
            own + before + chunk * (5 + entropy) * FP32,
            own + before + made + chunk * (3 * FP32 + size.narrow + entropy // 2 * FP32),
        ),
        passes=(46, 64 + 32 * shape.head.entropy),
        chunks=-(-size.tokens // tokens),
        added=4 * size.wide,
    )
    return (in_chunks(shape, "fused_linear_for_ppo", source, (source,), work),)


def verl_triton(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Logits never leave the kernel forward; going back their gradient is made in parts of the
    vocabulary, whose last one is copied where it is narrower. The weight's is made in any case."""
    size = sizes(shape)
    statistics = 3 * size.tokens * -(-size.vocabulary // _VERL_STATISTICS) * FP32
    last = max(size.vocabulary % _VERL_SPLIT, size.hidden * (size.vocabulary > _VERL_SPLIT))
    whole, rows = size.weight * size.narrow, size.tokens * size.narrow
    work = InChunks(
        forward=(statistics + size.tokens * FP32,),
        backward=(whole + rows * (_VERL_SPLIT + last),),
        passes=(0, 4),
    )
    kept = (source, of_tokens(shape, "maximum"), of_tokens(shape, "accumulated", each=2))
    return (in_chunks(shape, "linear_cross_entropy", source, kept, work),)


def automodel_chunked(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Chunks of tokens, by autograd in the backward; their weight gradients add up in fp32."""
    size, tokens = sizes(shape), _chunk(shape, 512)
    chunk, own = tokens * size.vocabulary, _gradient(shape, size)
    total = size.weight * FP32 * bool(own)
    work = InChunks(
        forward=(chunk * (size.narrow + 2 * FP32),),
        backward=(
            total + chunk * 3 * FP32,
            total + chunk * (FP32 + size.narrow),
            total + chunk * size.narrow + own + tokens * size.hidden * size.wide,
        ),
        passes=(10, 20),
        chunks=-(-size.tokens // tokens),
        added=2 * FP32 + 2 * size.wide,
    )
    return (in_chunks(shape, "chunked_cross_entropy", source, (source,), work),)


def nemo_rl_fused(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Chunks of tokens; the chosen ones are marked in 64-bit integers (read, not run)."""
    size, tokens = sizes(shape), _chunk(shape, 256)
    chunk = tokens * size.vocabulary
    work = InChunks(
        forward=(chunk * (size.narrow + 4 * FP32),),
        backward=(_gradient(shape, size) + chunk * (size.narrow + 3 * FP32 + 3 * INT64),),
        passes=(40, 90),
        chunks=-(-size.tokens // tokens),
        added=3 * size.wide,
    )
    return (in_chunks(shape, "chunked_linear_log_probabilities", source, (source,), work),)


def cut_cross_entropy(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Logits never leave the kernels, nor their gradient (arXiv 2411.09009; read, not run)."""
    own = _gradient(shape, sizes(shape))
    work = InChunks(forward=(0,), backward=(own,), passes=(0, 0), scalar=True)
    kept = (source, of_tokens(shape, "log_sum"))
    return (in_chunks(shape, "cut_cross_entropy", source, kept, work),)


def torchtitan_chunked(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Each chunk goes back at once, by autograd: the forward makes all gradients, those of the
    hidden states in fp32 first, and keeps them. By default there are 8 chunks."""
    size, tokens = sizes(shape), _chunk(shape, -(-shape.tokens // 8))
    chunk, own, states = tokens * size.vocabulary, _gradient(shape, size), size.tokens * size.hidden
    copies = states * FP32 + (states * size.wide if shape.micro_batch_size > 1 else 0)
    work = InChunks(
        forward=(
            copies + chunk * (size.narrow + 3 * FP32),
            copies + chunk * 2 * size.narrow + own + tokens * size.hidden * size.wide,
            copies + states * size.wide,
        ),
        without_grad=copies - states * FP32 + chunk * (size.narrow + 2 * FP32),
        passes=(30, 0),
        chunks=-(-size.tokens // tokens),
        added=3 * size.wide,
        replays=False,
        scalar=True,
    )
    return _made_forward(shape, "chunked_loss", source, work)


def liger_grpo(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Sequence by sequence, each forward and back at once in tiles; a sequence's gradients are in
    fp32. The loss is scaled, which copies all gradients in the backward."""
    size, sequences = sizes(shape), shape.micro_batch_size
    tokens = size.tokens // sequences
    rows, columns = min(_LIGER_GRPO[0], tokens), min(_LIGER_GRPO[1], size.vocabulary)
    tile, own, states = rows * columns, _gradient(shape, size), tokens * size.hidden
    before = states * size.wide * (sequences - 1) + states * FP32
    total = size.weight * FP32 * bool(own)
    work = InChunks(
        forward=(
            before + states * size.wide + total + own * (size.wide != FP32),
            before + total + tile * 5 * FP32,
            before + total + (3 * tile + (rows + columns) * size.hidden) * FP32,
            2 * size.tokens * size.hidden * size.wide,
        ),
        backward=(own,),
        without_grad=tile * (size.narrow + 2 * FP32),
        passes=(90, 0),
        chunks=sequences,
        added=2 * FP32 + 2 * size.wide,
        replays=False,
        scalar=True,
    )
    return _made_forward(shape, "fused_linear_grpo", source, work, scaled=True)


def liger_preference(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """Pair by pair (two sequences of the micro batch), forward and back at once with the pair's
    whole logits. The loss is scaled, which copies all gradients in the backward."""
    size, sequences = sizes(shape), shape.micro_batch_size
    tokens = size.tokens // sequences * min(sequences, 2)
    chunk, own, states = tokens * size.vocabulary, _gradient(shape, size), tokens * size.hidden
    earlier = (size.tokens * size.hidden - states) * size.wide
    work = InChunks(
        forward=(
            earlier + states * size.wide + chunk * (size.narrow + 3 * FP32),
            earlier + 2 * states * size.wide + chunk * (size.narrow + 2 * FP32) + own,
            2 * size.tokens * size.hidden * size.wide,
        ),
        backward=(own,),
        without_grad=chunk * (size.narrow + 2 * FP32),
        passes=(40, 0),
        chunks=-(-size.tokens // tokens),
        added=3 * size.wide,
        replays=False,
        scalar=True,
    )
    return _made_forward(shape, "fused_linear_preference", source, work, scaled=True)


def _made_forward(
    shape: RankShape, name: str, source: Tensor, work: InChunks, *, scaled: bool = False
) -> tuple[Operator, ...]:
    """A head that keeps the gradients that its forward has made. scaled: going back copies them."""
    weight = output_weight(shape)
    kept = [Tensor(f"{name}.input_gradient", source.shape, source.dtype)]
    if not weight.frozen:
        kept.append(Tensor(f"{name}.weight_gradient", weight.shape, source.dtype))
    operator = in_chunks(shape, name, source, tuple(kept), work)
    before = max(operator.forward_workspace - source.num_bytes, 0)  # the first one comes last
    operator = replace(operator, forward_workspace=before)
    if scaled:
        return (operator,)
    own = {"weight_gradient_bytes": 0, "narrow_weight_gradient_bytes": 0}
    return (replace(operator, gradient_in_saved=True, **own),)
