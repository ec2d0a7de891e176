"""What NeMo refuses or ignores beyond TransformerConfig.

Source: NVIDIA/NeMo nemo/collections/nlp/modules/common/megatron/transformer.py and
nlp/models/language_modeling/megatron_base_model.py of the 1.x releases; NeMo 2 adds nothing.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict, names

_SOURCE: Final = "NeMo 1.x modules/common/megatron/transformer.py"
_WINDOW: Final = (
    "num_micro_batches_with_partial_activation_checkpoints",
    "activations_checkpoint_layers_per_pipeline",
)


def nemo_selective_needs_method(raw: RawSettings, revision: Revision) -> Problem | None:
    """NeMo 1's own transformer needs a method for selective recompute as well."""
    if raw.mcore_gpt or not raw.selective or raw.recompute_method is not None:
        return None
    return Problem(
        "activations_checkpoint_granularity = selective without activations_checkpoint_method",
        "add activations_checkpoint_method uniform, or train Megatron Core's (mcore_gpt true)",
        'ValueError: activations_checkpoint_method should be "uniform" or "block" when using',
    )


def nemo_distribute(raw: RawSettings, revision: Revision) -> Problem | None:
    """NeMo 1 has no key for distribute_saved_activations."""
    if not raw.distribute_saved_activations or revision.version != "1":
        return None
    return Problem(
        "NeMo 1 has no key for distribute_saved_activations",
        "drop distribute_saved_activations, or use NeMo 2",
    )


def nemo_default_layers(raw: RawSettings, revision: Revision) -> Problem | None:
    """NeMo 1's own transformer takes an unset number of layers as 1."""
    if raw.mcore_gpt or not raw.full or raw.recompute_num_layers is not None:
        return None
    return Problem(
        "activations_checkpoint_num_layers is unset, which becomes 1", "write the number you mean"
    )


def nemo_partial_microbatches(raw: RawSettings, revision: Revision) -> Problem | None:
    """Two keys vary recompute over microbatches and stages: with a pipeline, and not in Core."""
    given = [name for name in _WINDOW if getattr(raw, name) is not None]
    plain = raw.pipeline_model_parallel_size == 1
    if not given or not (plain or raw.mcore_gpt):
        return None
    why = "there is no pipeline" if plain else "Megatron Core's transformer (mcore_gpt) trains"
    return Problem(f"{names(given)} is ignored: {why}", f"drop {names(given)}")


RULES: Final = tuple(
    Rule(check.__name__, verdict, Authority.NEMO, check, _SOURCE)
    for check, verdict in (
        (nemo_selective_needs_method, Verdict.REFUSED),
        (nemo_distribute, Verdict.REFUSED),
        (nemo_default_layers, Verdict.PROMOTED),
        (nemo_partial_microbatches, Verdict.NO_EFFECT),
    )
)
