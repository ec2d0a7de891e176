"""Rules of TransformerConfig on the labels that main has and no release: mhc, gdp_in_proj, gdp_qkv.

Source: NVIDIA/Megatron-LM main d98e8a6 transformer_config.py:2028-2160.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict


def mhc_needs_connections(raw: RawSettings, revision: Revision) -> Problem | None:
    """mhc needs enable_mhc_connections."""
    if not _recomputes(raw, revision, "mhc") or raw.enable_mhc_connections:
        return None
    return Problem(
        "recompute_modules has mhc and enable_mhc_connections is off",
        "drop mhc",
        "ValueError: 'mhc' in recompute_modules requires enable_mhc_connections=True.",
    )


def mhc_with_mlp(raw: RawSettings, revision: Revision) -> Problem | None:
    """mhc excludes mlp."""
    if not _recomputes(raw, revision, "mhc") or not _recomputes(raw, revision, "mlp"):
        return None
    return Problem("recompute_modules has both mhc and mlp", "drop one of the two", "ValueError: ")


def mhc_layer_number(raw: RawSettings, revision: Revision) -> Problem | None:
    """mhc_recompute_layer_num must be at least 1."""
    number = raw.mhc_recompute_layer_num
    if not _recomputes(raw, revision, "mhc") or number is None or number >= 1:
        return None
    return Problem(
        f"mhc_recompute_layer_num = {number}", "use 1 or more, or leave it unset", "ValueError: "
    )


def mhc_with_offload(raw: RawSettings, revision: Revision) -> Problem | None:
    """mhc excludes offload of modules."""
    offloads = raw.fine_grained_activation_offloading
    if not _recomputes(raw, revision, "mhc") or not offloads:
        return None
    return Problem(
        "recompute_modules has mhc with fine_grained_activation_offloading",
        "drop one of the two",
        "NotImplementedError: 'mhc' in recompute_modules + fine_grained_activation_offloading is",
    )


def mhc_with_full(raw: RawSettings, revision: Revision) -> Problem | None:
    """enable_mhc_connections excludes full recompute."""
    if not raw.enable_mhc_connections or not raw.full or not revision.at_least(0, 20):
        return None
    return Problem(
        "full recompute with enable_mhc_connections",
        "use selective recompute with mhc",
        "NotImplementedError: enable_mhc_connections is not yet compatible with full activation",
    )


def mhc_with_pipeline(raw: RawSettings, revision: Revision) -> Problem | None:
    """enable_mhc_connections excludes pipeline parallelism."""
    plain = raw.pipeline_model_parallel_size == 1
    if not raw.enable_mhc_connections or plain or not revision.at_least(0, 20):
        return None
    return Problem(
        "enable_mhc_connections with pipeline_model_parallel_size = "
        f"{raw.pipeline_model_parallel_size}",
        "use pipeline_model_parallel_size 1",
        "NotImplementedError: enable_mhc_connections does not support pipeline_model_parallel_size",
    )


def gdp_offload_and_recompute(raw: RawSettings, revision: Revision) -> Problem | None:
    """Offload of gdp_qkv excludes recompute of gdp_in_proj."""
    offloads = raw.fine_grained_activation_offloading and "gdp_qkv" in raw.offload_modules
    if not offloads or not _recomputes(raw, revision, "gdp_in_proj"):
        return None
    return Problem(
        "offload_modules has gdp_qkv and recompute_modules gdp_in_proj",
        "drop one of the two",
        "ValueError: gdp_qkv cannot be set in offload_modules together with gdp_in_proj",
    )


def _recomputes(raw: RawSettings, revision: Revision, module: str) -> bool:
    return module in revision.recompute_modules and module in raw.recomputed_modules


RULES: Final = tuple(
    Rule(check.__name__, Verdict.REFUSED, Authority.CONFIG, check)
    for check in (
        mhc_needs_connections,
        mhc_with_mlp,
        mhc_layer_number,
        mhc_with_offload,
        mhc_with_full,
        mhc_with_pipeline,
        gdp_offload_and_recompute,
    )
)
