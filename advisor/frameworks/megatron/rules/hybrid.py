"""Rules of models that a hybrid pattern describes: stacks of Mamba, attention and MLP layers.

Source: MambaStack and HybridStack of the wheels megatron-core 0.16.1, 0.17.0, 0.18.0 and 0.19.0.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict


def reads_full_recompute(raw_pattern: str | None, revision: Revision) -> bool:
    """Whether full recompute reaches the layers: MambaStack never asks for it, HybridStack does."""
    return raw_pattern is None or revision.at_least(0, 18)


def hybrid_ignores_full(raw: RawSettings, revision: Revision) -> Problem | None:
    """Before 0.18 a hybrid stack runs its layers without reading recompute_granularity full."""
    if not raw.full or reads_full_recompute(raw.hybrid_layer_pattern, revision):
        return None
    return Problem(
        f"full recompute of a hybrid pattern is ignored by {revision.label}: its MambaStack has no "
        "checkpoint around a layer",
        "use megatron-core 0.18, or selective recompute",
    )


def hybrid_segments(raw: RawSettings, revision: Revision) -> Problem | None:
    """| in a hybrid pattern came with 0.17."""
    if "|" not in (raw.hybrid_layer_pattern or "") or revision.at_least(0, 17):
        return None
    return Problem(
        f"{revision.label} knows no | in a hybrid pattern",
        "use megatron-core 0.17, or leave the stages even",
        "ValueError: In hybrid override pattern, '|' is not one of",
    )


RULES: Final = (
    Rule(
        "hybrid_segments",
        Verdict.REFUSED,
        Authority.TRAINING,
        hybrid_segments,
        "megatron-core 0.16.1 ssm/mamba_hybrid_layer_allocation.py:68-84",
    ),
    Rule(
        "hybrid_ignores_full",
        Verdict.NO_EFFECT,
        Authority.TRAINING,
        hybrid_ignores_full,
        "megatron-core 0.17.0 ssm/mamba_block.py, 0.18.0 models/hybrid/hybrid_block.py:308",
    ),
)
