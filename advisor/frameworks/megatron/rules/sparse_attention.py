"""Rules on attention to the tokens that an indexer chooses (DSA)."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import lists
from advisor.frameworks.megatron.rules.stated import Lines, Rule, clash, config, crashes


def _is_sparse(raw: RawSettings, _: Revision) -> bool:
    return raw.is_sparse


_CP: Final = "experimental_attention_variant=dsa context_parallel_size=2"
RULES: Final[dict[str, Rule]] = {
    "sparse_attention_context_parallel": Rule(
        summary="Sparse attention (dsa) refuses context parallelism before 0.19.",
        given=_is_sparse,
        when=lambda raw, _: raw.context_parallel_size != 1,
        reason="dsa cannot be combined with context_parallel_size = {raw.context_parallel_size}",
        fix="[context_parallel_size=1], or [>=0.19]",
        source=config(0, 0, 0, 1988, 2230, 2543, 0),
        example=_CP,
    ),
    "sparse_attention_rope_fusion": clash(
        "experimental_attention_variant=dsa",
        "apply_rope_fusion",
        "[apply_rope_fusion]",
        source=config(0, 0, 0, 1991, 2233, 2546, 2838),
    ),
    "sparse_attention_gathers": Rule(
        summary="Sparse attention (dsa) with context parallelism needs cp_comm_type all_gather.",
        given=_is_sparse,
        when=lambda raw, _: (
            raw.context_parallel_size > 1
            and {kind.replace("_", "").lower() for kind in raw.cp_comm_type or ("p2p",)}
            != {"allgather"}
        ),
        reason="dsa needs cp_comm_type = all_gather",
        fix="[cp_comm_type=all_gather], or [context_parallel_size=1]",
        source=config(0, 0, 0, 0, 0, 0, 2845),
        example=_CP,
    ),
    "sparse_attention_sequence_parallel": crashes(
        given=_is_sparse,
        when=lambda raw, _: raw.tensor_model_parallel_size > 1 and not raw.sequence_parallel,
        reason="dsa with tensor parallelism needs sequence_parallel",
        fix="[sequence_parallel=true], or [tensor_model_parallel_size=1]",
        source=Lines("absorbed_mla.py", (0, 0, 0, 0, 0, 0, 171)),
        example="experimental_attention_variant=dsa tensor_model_parallel_size=2",
    ),
    "sparse_attention_quantized": crashes(
        given=_is_sparse,
        when=lambda raw, _: lists(raw, "mla_up_proj") and (raw.fp8 or raw.fp4),
        reason="mla_up_proj with dsa cannot be replayed in 8 or 4 bits",
        fix="drop mla_up_proj",
        source=Lines("absorbed_mla.py", (0, 0, 0, 0, 0, 0, 663)),
        example="experimental_attention_variant=dsa multi_latent_attention=true fp8=hybrid "
        "recompute_granularity=selective recompute_modules=mla_up_proj",
    ),
    "sparse_attention_release": crashes(
        summary="0.16 and 0.17 have sparse attention (dsa), but build no GPT with it.",
        when=_is_sparse,
        reason="{revision.label} builds no GPT with dsa",
        fix="[>=0.18], or [experimental_attention_variant]",
        source=Lines("experimental_attention_variant_module_specs.py", (0, 0, 0, 143, 143, 0, 0)),
        example="experimental_attention_variant=dsa",
    ),
}
"""In the order in which Megatron checks them."""
