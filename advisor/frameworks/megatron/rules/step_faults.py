"""What TransformerConfig accepts and the training step then makes of it: hangs and crashes."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.plan import reads_full_recompute
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import stated


def _uniform_must_divide(raw: RawSettings, _: Revision) -> Match | None:
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    if number is None or number < 1 or layers is None or layers % number == 0:
        return None
    divisors = [n for n in range(1, layers + 1) if layers % n == 0]
    near = [n for n in divisors if n < number][-1:] + [n for n in divisors if n > number][:1]
    return Match(
        f"uniform recompute of {number} layers does not divide model chunks of {layers} layers",
        f"use recompute_num_layers {' or '.join(str(n) for n in near)}, or megatron-core 0.17",
    )


# mlp_recompute_with_bias: the MLP returns linear_fc2's bias with its output. As an output of the
# checkpoint's autograd function the parameter itself gets that function as grad_fn, and the
# backward of the replay runs into it, and replays, again.
RULES: Final = stated("step_faults", uniform_must_divide=_uniform_must_divide)

HYBRID_RULES: Final = stated(
    "step_faults.hybrid",
    hybrid_ignores_full=lambda raw, revision: (
        not reads_full_recompute(raw.hybrid_layer_pattern, revision)
    ),
)
"""Stacks of Mamba, attention and MLP layers: MambaStack and HybridStack of the wheels
megatron-core 0.16.1, 0.17.0, 0.18.0 and 0.19.0."""
