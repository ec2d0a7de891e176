"""What TransformerConfig accepts and the training step then makes of it: hangs and crashes."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict

_LOOP: Final = (
    "megatron-core 0.16.1 transformer_block.py:_checkpointed_forward, 0.19.2 recompute.py"
)
_MTP: Final = "megatron-core 0.16.1 multi_token_prediction.py:842-857"
_BIASED_MLP: Final = (
    "megatron-core 0.16.1 tensor_parallel/random.py:CheckpointFunction, mlp.py; run there"
)


def uniform_without_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """uniform with recompute_num_layers below 1: the loop over layers never advances."""
    number = raw.recompute_num_layers
    if not raw.full or raw.recompute_method != "uniform" or number is None or number > 0:
        return None
    return Problem(
        f"uniform recompute with recompute_num_layers = {number}: the first forward never ends",
        "use recompute_num_layers 1 or more",
    )


def uniform_must_divide(raw: RawSettings, revision: Revision) -> Problem | None:
    """Up to 0.16, uniform N must divide the layers of a model chunk."""
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    uniform = raw.full and raw.recompute_method == "uniform" and revision.uniform_must_divide
    if not uniform or number is None or number < 1 or layers is None or layers % number == 0:
        return None
    divisors = [n for n in range(1, layers + 1) if layers % n == 0]
    near = [n for n in divisors if n < number][-1:] + [n for n in divisors if n > number][:1]
    return Problem(
        f"uniform recompute of {number} layers in model chunks of {layers}, which {number} does "
        "not divide",
        f"use recompute_num_layers {' or '.join(str(n) for n in near)}, or megatron-core 0.17",
        "IndexError: list index out of range",
    )


def mtp_uniform_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """With MTP layers, uniform takes recompute_num_layers 1 only (from 0.14 on)."""
    number = raw.recompute_num_layers
    uniform = raw.full and raw.recompute_method == "uniform" and number not in (None, 1)
    if not uniform or not raw.mtp_num_layers or not revision.at_least(0, 14):
        return None
    return Problem(
        f"uniform recompute with recompute_num_layers = {number} in a model with MTP layers",
        "use recompute_num_layers 1",
        "AssertionError: recompute_num_layers must be 1 for MTP recompute",
    )


def mtp_block(raw: RawSettings, revision: Revision) -> Problem | None:
    """block recomputes no MTP layer; up to 0.13 nothing does."""
    covered = revision.at_least(0, 14) and raw.recompute_method != "block"
    if not raw.full or not raw.mtp_num_layers or covered:
        return None
    return Problem(
        "the MTP layers are not recomputed and keep all their activations",
        "use uniform with recompute_num_layers 1 (megatron-core 0.14 or newer)",
    )


def mlp_recompute_with_bias(raw: RawSettings, revision: Revision) -> Problem | None:
    """mlp recompute with add_bias_linear never ends on Megatron's own layers.

    The MLP returns linear_fc2's bias beside its output. As an output of the checkpoint's autograd
    function the parameter itself gets that function as grad_fn, and the backward of the replay
    runs into it, and replays, again.
    """
    if not _recomputes_biased_mlp(raw) or raw.transformer_impl != "local":
        return None
    return Problem(
        "recompute_modules has mlp and add_bias_linear is on: the first backward replays the MLP "
        "for ever",
        "drop mlp, set add_bias_linear off (--disable-bias-linear), or use full recompute",
    )


def mlp_recompute_with_bias_under_te(raw: RawSettings, revision: Revision) -> Problem | None:
    """The same checkpoint around Transformer Engine's layers, which was not run."""
    if not _recomputes_biased_mlp(raw) or raw.transformer_impl != "transformer_engine":
        return None
    return Problem(
        "recompute_modules has mlp and add_bias_linear is on: on the local layers the first "
        "backward never ends (megatron-core 0.16.1); not tried with Transformer Engine",
        "try one step before a long run",
    )


def _recomputes_biased_mlp(raw: RawSettings) -> bool:
    biased = raw.add_bias_linear is True and raw.has_dense_mlp
    return biased and "mlp" in raw.recomputed_modules


RULES: Final = (
    Rule(
        "uniform_without_layers", Verdict.HANGS, Authority.TRAINING, uniform_without_layers, _LOOP
    ),
    Rule(
        "uniform_must_divide",
        Verdict.CRASHES,
        Authority.TRAINING,
        uniform_must_divide,
        "megatron-core 0.16.1 transformer_block.py:_checkpointed_forward; fixed by PR #3562 (0.17)",
    ),
    Rule("mtp_uniform_layers", Verdict.CRASHES, Authority.TRAINING, mtp_uniform_layers, _MTP),
    Rule("mtp_block", Verdict.NOTE, Authority.TRAINING, mtp_block, _MTP),
    Rule(
        "mlp_recompute_with_bias",
        Verdict.HANGS,
        Authority.TRAINING,
        mlp_recompute_with_bias,
        _BIASED_MLP,
    ),
    Rule(
        "mlp_recompute_with_bias_under_te",
        Verdict.NOTE,
        Authority.TRAINING,
        mlp_recompute_with_bias_under_te,
        _BIASED_MLP,
    ),
)
