"""Heads on logits whose vocabulary TP ranks share: [.., vocabulary / tp] of each.

Sources: verl 0.9.1 workers/engine/megatron/transformer_impl.py, utils/megatron/tensor_parallel.py;
slime 624b824 utils/ppo_utils.py and backends/megatron_utils/loss.py; NeMo-RL 7ea279a
distributed/model_utils.py; megatron-core 0.16.1 tensor_parallel/cross_entropy.py.
tests/oracles/test_heads.py runs the first and the last, and what is written after the others.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import in_fp32
from advisor.layers.heads.whole import divided, log_probabilities, of_tokens, step
from advisor.layers.operators import Operator, Tensor
from advisor.layers.shape import RankShape

_FP32, _INT64 = DType.FP32.itemsize, DType.INT64.itemsize


def _targets(shape: RankShape) -> tuple[Tensor, Tensor]:
    """Labels of this rank's part of the vocabulary, and which ones are of another's."""
    return (
        of_tokens(shape, "masked_target", DType.INT64),
        of_tokens(shape, "target_mask", DType.BOOL),
    )


def verl_megatron(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """Divided in place; with an entropy on a copy, which reads the logits themselves. Cross entropy
    is Megatron's, whose 16-bit gradient comes next to the softmax in fp32."""
    scaled, operators = divided(shape, logits, logits.dtype, in_place=True)
    copied, held = scaled, tuple[Tensor, ...]()
    if shape.head.entropy:
        copied = replace(logits, name="copied_logits")
        softmax = replace(logits, name="entropy.softmax")
        kept = (softmax, scaled, of_tokens(shape, "entropy.product", logits.dtype))
        entropy = step("entropy", scaled, (of_tokens(shape, "entropy", logits.dtype),), *kept)
        copy = step("clone", scaled, (copied,))
        handed = frozenset({scaled.name})
        operators += (
            replace(copy, gradient_passed_to=handed),
            replace(entropy, gradient_in_saved=True, workspace_without_grad=softmax.num_bytes),
        )
        held = (copied, scaled)
    softmax = in_fp32(logits, "softmax")
    output = log_probabilities(shape)[:1]
    last = step("cross_entropy", copied, output, softmax, *_targets(shape))
    rows = shape.tokens * (_INT64 + 2 * _FP32)
    alone = rows + softmax.num_bytes
    last = replace(last, forward_workspace=rows, workspace_without_grad=alone)
    return (*operators, replace(last, forward_holds=held))


def slime(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """Logits in fp32, which the schedule holds, and their softmax; chunks of tokens keep as much,
    and join their gradients to another tensor, when all but these are gone. An entropy's gradient
    is a tensor of each chunk."""
    wide, head = in_fp32(logits, "logits.fp32"), shape.head
    operators, scaled = [step("logits.float", logits, (wide,))], wide
    if head.temperature != 1.0:
        scaled, division = divided(shape, wide)
        operators += division
    softmax = in_fp32(logits, "softmax")
    kept = (softmax, scaled, of_tokens(shape, "kept_entropy")) if head.entropy else (softmax,)
    part = softmax.num_bytes * min(head.chunk_size or shape.tokens, shape.tokens) // shape.tokens
    joined = part if head.entropy else softmax.num_bytes * (head.chunk_size is not None)
    last = step("softmax", scaled, log_probabilities(shape), *kept, workspace=joined)
    last = replace(last, workspace_without_grad=part)
    return (*operators, replace(last, forward_holds=(wide,), gradient_in_saved=True))


def nemo_rl(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """Whole in fp32, or in chunks of each sequence (logprob_chunk_size) that keep the logits as
    they are; the chosen ones are marked in 64-bit integers there."""
    size, output = shape.head.chunk_size, log_probabilities(shape)[:1]
    if size is None:
        wide, softmax = in_fp32(logits, "logits.fp32"), in_fp32(logits, "softmax")
        last = step("distributed_log_softmax", wide, output, softmax, *_targets(shape))
        alone = {"workspace_without_grad": 2 * softmax.num_bytes, "forward_holds": (logits,)}
        last = replace(last, forward_workspace=softmax.num_bytes, **alone)
        return (step("logits.float", logits, (wide,)), last)
    part = logits.num_elements * min(size, shape.local_seq) // shape.local_seq
    more = size < shape.local_seq
    last = step("chunked_log_softmax", logits, output, logits, *_targets(shape))
    there, back = (3 + more) * _FP32, (2 + more) * (_FP32 + _INT64)
    return (replace(last, forward_workspace=part * there, backward_workspace=part * back),)
