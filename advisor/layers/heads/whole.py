"""Heads that have all logits in memory, and what they do to them.

Sources: transformers 5.23.0 loss/loss_utils.py; trl 1.16.0 kernels/logprob_entropy.py; verl 0.9.1
workers/engine/fsdp/transformer_impl.py; prime-rl 559b447 lm_head.py; openrlhf 0.11.2
models/actor.py and utils.py; flash-attn 2.8 ops/triton/cross_entropy.py. Run in
tests/oracles/test_heads.py.
"""

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.layers.eager.parts import in_fp32
from advisor.layers.operators import Module, Operator, Tensor
from advisor.layers.shape import RankShape


def of_tokens(shape: RankShape, name: str, dtype: DType = DType.FP32, each: int = 1) -> Tensor:
    """[tokens, each]."""
    return Tensor(name, (shape.tokens, each), dtype)


def log_probabilities(shape: RankShape) -> tuple[Tensor, ...]:
    """What a head returns, [tokens] each in fp32: log-probabilities, and the entropy where it is a
    term of the loss."""
    entropy = (of_tokens(shape, "entropy"),) if shape.head.entropy else ()
    return (of_tokens(shape, "log_probabilities"), *entropy)


def step(
    name: str, source: Tensor, outputs: tuple[Tensor, ...], *saved: Tensor, workspace: int = 0
) -> Operator:
    """One that memory bounds, after the output layer. workspace: of its backward."""
    return Operator(
        name, Module.LOSS, (source,), outputs, saved=saved, backward_workspace=workspace
    )


def divided(
    shape: RankShape, logits: Tensor, dtype: DType | None = None, *, in_place: bool = False
) -> tuple[Tensor, tuple[Operator, ...]]:
    """Logits over a temperature of each token, which is kept in `dtype`, or over a number (None).
    `in_place`: or else into a tensor of their own. The gradient is one in any case."""
    name = "scaled_logits"
    kept = () if dtype is None else (of_tokens(shape, "temperature", dtype),)
    scaled = logits.view(name, logits.shape) if in_place else replace(logits, name=name)
    return scaled, (step("divide", logits, (scaled,), *kept),)


def compiled_entropy(shape: RankShape, logits: Tensor) -> Operator:
    """Entropy of each token, compiled: of it are kept two numbers a token in fp32, and one in the
    logits' type."""
    kept = (of_tokens(shape, "entropy.maximum"), of_tokens(shape, "entropy.sum"))
    last = of_tokens(shape, "entropy.log_sum", logits.dtype)
    output = (of_tokens(shape, "entropy", logits.dtype),)
    return step("entropy", logits, output, logits, *kept, last)


def flash_cross_entropy(shape: RankShape, logits: Tensor, *, in_place: bool) -> Operator:
    """flash-attn's kernel. in_place: the gradient is written over the logits."""
    output = (of_tokens(shape, "log_probabilities"),)
    operator = step("cross_entropy", logits, output, logits, of_tokens(shape, "log_sum"))
    return replace(operator, gradient_in_saved=in_place)


def trl_logits(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """A kernel that divides by the temperature itself, and has the entropy for nothing."""
    kept = (of_tokens(shape, "log_z"), of_tokens(shape, "expected_logit"))
    made = (of_tokens(shape, "log_probabilities"), of_tokens(shape, "entropy"))
    operator = step("selective_log_softmax", logits, made, logits, *kept)
    return (replace(operator, outputs=made if shape.head.entropy else made[:1]),)


def verl(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """The model's output is held until the log-probabilities are there; they go back in place
    unless the entropy does as well."""
    scaled, operators = logits, tuple[Operator, ...]()
    if shape.head.temperature != 1.0:
        scaled, operators = divided(shape, logits, logits.dtype)
    if shape.head.entropy:
        operators += (compiled_entropy(shape, scaled),)
    last = flash_cross_entropy(shape, scaled, in_place=not shape.head.entropy)
    return (*operators, replace(last, forward_holds=(logits,)))


def prime_rl_logits(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """In fp32, divided into a copy; of each sequence the logarithm of the sum is a step of its own,
    with two temporaries in the backward, whose gradient joins that of the chosen logits."""
    wide = in_fp32(logits, "logits.fp32")
    scaled, division = divided(shape, wide, DType.FP32)
    workspace = max(scaled.num_bytes, scaled.num_bytes * 2 // shape.micro_batch_size)
    saved = (scaled, of_tokens(shape, "log_sum"))
    output = log_probabilities(shape)[:1]
    last = step("selective_log_softmax", scaled, output, *saved, workspace=workspace)
    return (step("logits.float", logits, (wide,)), *division, last)


def prime_rl_cross_entropy(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """In fp32, which the model's output holds until the gradient is there."""
    wide, probs = in_fp32(logits, "logits.fp32"), in_fp32(logits, "log_softmax")
    return (
        step("logits.float", logits, (wide,)),
        step("log_softmax", wide, (probs,), probs, wide),
        step("nll_loss", probs, (Tensor("loss", (1,), DType.FP32),)),
    )


def openrlhf(shape: RankShape, logits: Tensor) -> tuple[Operator, ...]:
    """In fp32, divided in place; flash-attn's kernel makes a new gradient."""
    wide = in_fp32(logits, "logits.fp32")
    operators, scaled = [step("logits.float", logits, (wide,))], wide
    if shape.head.temperature != 1.0:
        scaled, division = divided(shape, wide, in_place=True)
        operators += division
    if shape.head.entropy:
        operators.append(compiled_entropy(shape, scaled))
    return (*operators, flash_cross_entropy(shape, scaled, in_place=False))
