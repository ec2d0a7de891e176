"""Which heads a job may have, and those that need less memory: `head.implementation`."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import UserError, either
from advisor.frameworks.part_types import Effect, JobChange
from advisor.job.job import Job, JobConfig
from advisor.job.loss_head import HeadImplementation as Name
from advisor.job.loss_head import RouterAuxLoss
from advisor.layers.heads.implementations import HEADS
from advisor.models.spec import ModelSpec

_FIELD: Final = "head.implementation"
_LIGHTER: Final = {
    Name.TRL_LOGITS: ((Name.TRL, "TRL 1.16 and later"),),
    Name.VERL: ((Name.VERL_FUSED, "use_fused_kernels"), (Name.VERL_TRITON, "impl_backend triton")),
    Name.VERL_MEGATRON: ((Name.VERL_TRITON, "use_fused_kernels"),),
    Name.PRIME_RL_LOGITS: ((Name.PRIME_RL, "fused_lm_head_token_chunk_size"),),
    Name.NEMO_RL: ((Name.NEMO_RL_FUSED, "use_fused_linear_logprobs"),),
}
"""Heads of the same package that never have all logits, and what turns them on."""


_TRANSFORMERS: Final = {
    "logits_to_keep": "all positions have logits",
    "router_aux_loss": "its routers add their losses in each layer (model.moe_aux_loss_coeff)",
}


def known_heads(model: ModelSpec) -> tuple[Name, ...]:
    """Those that are modelled after the model's layers."""
    eager = model.transformer_impl.is_eager
    own = (Name.DEFAULT, Name.TRANSFORMERS, Name.LIGER) if eager else (Name.DEFAULT,)
    found = (name for name, head in HEADS.items() if (head.eager if eager else head.megatron))
    return (*own, *found)


def check_head(model: ModelSpec, config: JobConfig) -> None:
    """UserError where the head is not known after the model's layers."""
    head, known = config.head, known_heads(model)
    eager = model.transformer_impl.is_eager
    if head.implementation not in known:
        whose = "PyTorch's" if eager else "Megatron's"
        raise UserError(
            _FIELD, head.implementation, f"is not modelled after {whose} layers", either(known)
        )
    if head.implementation is not Name.DEFAULT and model.mtp_num_layers is not None:
        reason = "is not modelled with multi-token prediction"
        raise UserError(_FIELD, head.implementation, reason, "default")
    for name, why in _TRANSFORMERS.items():
        value = getattr(head, name)
        if not eager and value not in (None, RouterAuxLoss.NONE):
            reason = f"is not an option of Megatron's: {why}"
            raise UserError(f"head.{name}", value, reason, "leave it out")


def head_changes(job: Job) -> Iterator[JobChange]:
    """Heads in chunks of the package whose head has all logits."""
    known = known_heads(job.model)
    for name, option in _LIGHTER.get(job.config.head.implementation, ()):
        if name in known:
            other = replace(job.config, head=replace(job.config.head, implementation=name))
            yield JobChange(
                f"{_FIELD}={name} ({option})",
                "log-probabilities come in chunks: no logits of a whole microbatch",
                lambda other=other: replace(job, config=other),  # type: ignore[misc]
                Effect.MEMORY,
            )
