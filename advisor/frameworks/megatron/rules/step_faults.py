"""What TransformerConfig accepts and the training step then makes of it: hangs and crashes."""

from typing import Final

from advisor.base.rule import Match
from advisor.frameworks.megatron.plan import reads_full_recompute
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import replayed
from advisor.frameworks.megatron.rules.stated import Authority, Rule, crashes, hangs, ignored, noted


def _uniform_must_divide(raw: RawSettings, revision: Revision) -> Match | None:
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    uniform = raw.full and raw.recompute_method == "uniform" and revision.uniform_must_divide
    if not uniform or number is None or number < 1 or layers is None or layers % number == 0:
        return None
    divisors = [n for n in range(1, layers + 1) if layers % n == 0]
    near = [n for n in divisors if n < number][-1:] + [n for n in divisors if n > number][:1]
    return Match(
        f"uniform recompute of {number} layers does not divide model chunks of {layers} layers",
        f"use recompute_num_layers {' or '.join(str(n) for n in near)}, or megatron-core 0.17",
    )


def _biased_mlp(raw: RawSettings, impl: str) -> bool:
    biased = raw.add_bias_linear is True and raw.has_dense_mlp
    return biased and raw.transformer_impl == impl and bool(replayed(raw, "mlp"))


_MTP: Final = "megatron-core 0.16.1 multi_token_prediction.py:842-857"
_BIASED_MLP: Final = (
    "megatron-core 0.16.1 tensor_parallel/random.py:CheckpointFunction, mlp.py; reproduced"
)

RULES: Final[dict[str, Rule]] = {
    "uniform_without_layers": hangs(
        summary="With recompute_num_layers below 1, uniform recompute hangs.",
        given=lambda raw, _: raw.full and raw.recompute_method == "uniform",
        when=lambda raw, _: raw.recompute_num_layers is not None and raw.recompute_num_layers <= 0,
        reason="uniform recompute with recompute_num_layers = {raw.recompute_num_layers}: the "
        "first forward never ends",
        fix="use recompute_num_layers 1 or more",
        source="megatron-core 0.16.1 transformer_block.py:_checkpointed_forward, 0.19.2 "
        "recompute.py",
        example="recompute_method=uniform recompute_num_layers=0 recompute_granularity=full",
    ),
    "uniform_must_divide": crashes(
        summary="Up to 0.16, the N of uniform:N must divide the layers of a model chunk.",
        when=_uniform_must_divide,
        source="megatron-core 0.16.1 transformer_block.py:_checkpointed_forward; fixed by PR #3562 "
        "(0.17)",
        example="recompute_granularity=full recompute_method=uniform recompute_num_layers=9 "
        "num_layers=8",
    ),
    "sparse_attention_quantized": crashes(
        given=lambda raw, _: raw.experimental_attention_variant == "dsa" and (raw.fp8 or raw.fp4),
        when=lambda raw, _: replayed(raw, "mla_up_proj"),
        since=(0, 19),
        reason="mla_up_proj of sparse attention (dsa) is not replayed in 8 or 4 bits",
        fix="drop mla_up_proj",
        source="megatron-core 0.19.2 experimental_attention_variant/absorbed_mla.py:663",
        example="experimental_attention_variant=dsa multi_latent_attention=true fp8=hybrid "
        "recompute_granularity=selective recompute_modules=mla_up_proj",
    ),
    "mtp_uniform_layers": crashes(
        summary="With MTP layers, uniform needs recompute_num_layers 1 (since 0.14).",
        given=lambda raw, revision: raw.mtp_num_layers and revision.at_least(0, 14),
        when=lambda raw, _: (
            raw.full
            and raw.recompute_method == "uniform"
            and raw.recompute_num_layers not in (None, 1)
        ),
        reason="uniform recompute with recompute_num_layers = {raw.recompute_num_layers} cannot be "
        "combined with MTP layers",
        fix="use recompute_num_layers 1",
        source=_MTP,
        example="recompute_granularity=full recompute_method=uniform recompute_num_layers=2 "
        "mtp_num_layers=1",
    ),
    "mtp_block": noted(
        summary="block does not recompute MTP layers; up to 0.13 no method does.",
        given=lambda raw, _: raw.full and raw.mtp_num_layers,
        when=lambda raw, revision: raw.recompute_method == "block" or revision.number < (0, 14),
        reason="the MTP layers are not recomputed and keep all their activations",
        fix="use uniform with recompute_num_layers 1 (megatron-core 0.14 or newer)",
        source=_MTP,
        example="recompute_granularity=full recompute_method=block mtp_num_layers=1",
    ),
    # The MLP returns linear_fc2's bias with its output. As an output of the checkpoint's autograd
    # function the parameter itself gets that function as grad_fn, and the backward of the replay
    # runs into it, and replays, again.
    "mlp_recompute_with_bias": hangs(
        when=lambda raw, _: _biased_mlp(raw, "local"),
        reason="recompute of mlp cannot be combined with add_bias_linear: the first backward "
        "replays the MLP without end",
        fix="drop mlp, or [add_bias_linear=false], or use full recompute",
        source=_BIASED_MLP,
        example="recompute_granularity=selective recompute_modules=mlp transformer_impl=local "
        "add_bias_linear=true",
    ),
    "mlp_recompute_with_bias_under_te": noted(
        summary="mlp recompute with add_bias_linear was not tried on Transformer Engine's layers.",
        when=lambda raw, _: _biased_mlp(raw, "transformer_engine"),
        reason="mlp is recomputed, and add_bias_linear is on: on the local layers the first "
        "backward never ends (megatron-core 0.16.1); not tried with Transformer Engine",
        fix="try one step before a long run",
        source=_BIASED_MLP,
        example="recompute_granularity=selective recompute_modules=mlp add_bias_linear=true",
    ),
}

HYBRID_RULES: Final[dict[str, Rule]] = {
    "hybrid_segments": Rule(
        summary="The separator | in a hybrid pattern came with 0.17.",
        given=lambda _, revision: not revision.at_least(0, 17),
        when=lambda raw, _: "|" in (raw.hybrid_layer_pattern or ""),
        reason="{revision.label} does not accept | in a hybrid pattern",
        fix="[>=0.17], or drop the |: stages then have equal numbers of layers",
        authority=Authority.TRAINING,
        source="megatron-core 0.16.1 ssm/mamba_hybrid_layer_allocation.py:68-84",
        example="hybrid_layer_pattern=M*|-E",
    ),
    "hybrid_ignores_full": ignored(
        summary="Before 0.18, a hybrid stack ignores recompute_granularity full.",
        given=lambda raw, _: raw.full,
        when=lambda raw, revision: not reads_full_recompute(raw.hybrid_layer_pattern, revision),
        reason="full recompute of a hybrid pattern is ignored by {revision.label}: its MambaStack "
        "has no checkpoint around a layer",
        fix="use megatron-core 0.18, or selective recompute",
        source="megatron-core 0.17.0 ssm/mamba_block.py, 0.18.0 models/hybrid/hybrid_block.py:308",
        example="recompute_granularity=full hybrid_layer_pattern=M*-E",
    ),
}
"""Stacks of Mamba, attention and MLP layers: MambaStack and HybridStack of the wheels
megatron-core 0.16.1, 0.17.0, 0.18.0 and 0.19.0."""
