"""The GPT model chunks of one rank out of settings, and their inputs: the same random tokens."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.fusions import fused_bias_geglu
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.nn import functional

from advisor.frameworks.megatron.options.table import option_of_field
from advisor.frameworks.megatron.raw import RawSettings
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import Activation
from harness.backends.megatron_core.case import CoreAttention, MegatronCase
from harness.backends.training_rank import random_tokens

_TYPES: Final = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.uint8,
}
"""Megatron-LM's names of number types (training/arguments.py)."""


def _pattern(text: str) -> int | list[int]:
    entries = LayerPattern(text).entries
    return entries if isinstance(entries, int) else list(map(int, entries))


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "attention_backend": lambda name: AttnBackend[name],
    "window_size": lambda text: tuple(map(int, text.split(","))),
    "window_attn_skip_freq": _pattern,
    "no_rope_freq": _pattern,
    "moe_layer_freq": _pattern,
    "linear_attention_freq": _pattern,
    "hierarchical_context_parallel_sizes": lambda sizes: list(map(int, sizes)),
    # one for all layers is handed on as a name (core_transformer_config_from_args)
    "cp_comm_type": lambda names: names[0] if len(names) == 1 else list(names),
}
"""Options that the configuration has in another type than the command line."""


def keywords(settings: RawSettings, cls: type) -> dict[str, Any]:
    """Keyword arguments of one of Megatron's configuration classes: the options that `settings`
    were given, under the names and in the types of the installed release, where it knows them."""
    given, found = settings.given, {}
    known = {field.name: field.type for field in fields(cls)}
    for name, annotation in known.items():
        row = option_of_field(name)
        renamed = row is not None and row.name != name and row.name in known
        if row is not None and row.name in given and not renamed:
            found[name] = _read(row.name, given[row.name], annotation)
    return found


def _read(name: str, value: Any, annotation: object) -> Any:
    if value is None:
        return None
    if "dtype" in str(annotation):
        return _TYPES[value]
    read = _READ.get(name)
    if read is not None:
        return read(value)
    return list(value) if isinstance(value, tuple) else value


def _activation_function(case: MegatronCase) -> Callable[..., torch.Tensor]:
    activation = Activation(case.activation)
    if activation is Activation.SQUARED_RELU:
        from megatron.core import activations  # not in 0.13

        return activations.squared_relu  # type: ignore[no-any-return]
    if activation is Activation.QUICK_GEGLU:
        return fused_bias_geglu.quick_gelu  # type: ignore[no-any-return]
    return functional.silu if activation is Activation.SWIGLU else functional.gelu


def transformer_config(case: MegatronCase, **changes: Any) -> Any:
    """The case as Megatron's own (validating) configuration object."""
    # Which of Transformer Engine's kernels: Megatron sets its NVTE_ variables.
    engine = case.transformer_impl == "transformer_engine"
    kernels = {} if engine else {"attention_backend": AttnBackend.auto}
    cls = MLATransformerConfig if case.multi_latent_attention else TransformerConfig
    values = {
        **keywords(case, cls),
        **kernels,
        "gated_linear_unit": Activation(case.activation).gated,
        "activation_func": _activation_function(case),
        # as Megatron-LM's arguments have it: on with virtual stages, off without
        "overlap_p2p_comm": case.interleaved,
        "batch_p2p_comm": not case.interleaved,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "mtp_loss_scaling_factor": 0.1,  # Megatron-LM's; None in releases before 0.16
        **changes,
    }
    known = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in values.items() if key in known})


def _layer_spec(case: MegatronCase, core_attention: type[torch.nn.Module]) -> Any:
    """Transformer Engine's layers, or Megatron's own with `core_attention` for a flash kernel."""
    kinds = {name: getattr(case, name) for name in ("qk_layernorm", "multi_latent_attention")}
    if case.transformer_impl == "transformer_engine":
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(**kinds)
    local = gpt_layer_specs.get_gpt_layer_local_spec(**kinds, normalization=case.normalization)
    spec = copy.deepcopy(local)
    _set_core_attention(case, spec, core_attention)
    return spec


def _set_core_attention(
    case: MegatronCase, spec: Any, core_attention: type[torch.nn.Module]
) -> None:
    if case.attention == CoreAttention.FLASH:
        spec.submodules.self_attention.submodules.core_attention = core_attention


def _chunk_spec(
    case: MegatronCase, config: Any, core_attention: type[torch.nn.Module], vp_stage: int | None
) -> Any:
    """The layers of a chunk: one spec for all, or one for each where some have experts."""
    if not case.has_experts:
        return _layer_spec(case, core_attention)
    engine = case.transformer_impl == "transformer_engine"
    make = gpt_layer_specs.get_gpt_decoder_block_spec
    block = make(config, engine, case.normalization, vp_stage=vp_stage)
    if not engine:
        for spec in block.layer_specs:
            _set_core_attention(case, spec, core_attention)
    return block


def _build_chunk(case: MegatronCase, config: Any, spec: Any, vp_stage: int | None) -> Any:
    return GPTModel(
        config,
        spec,
        vocab_size=case.vocab_size,
        max_sequence_length=case.max_position_embeddings or case.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        position_embedding_type=case.position_embedding_type,
        rotary_percent=case.rotary_percent,
        share_embeddings_and_output_weights=case.share_embeddings_and_output_weights,
        vp_stage=vp_stage,
        mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec(
            config, spec, case.transformer_impl == "transformer_engine", vp_stage=vp_stage
        ),
    )


def build_chunks(
    case: MegatronCase, core_attention: type[torch.nn.Module], config: Any
) -> list[Any]:
    """The GPT model chunks of the current rank, in training mode, with bf16 parameters."""
    stages = list(range(case.num_model_chunks)) if case.interleaved else [None]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # torch's own norms and embeddings take no dtype
    try:
        specs = [_chunk_spec(case, config, core_attention, stage) for stage in stages]
        return [
            _build_chunk(case, config, spec, stage)
            for spec, stage in zip(specs, stages, strict=True)
        ]
    finally:
        torch.set_default_dtype(default)


class Batch:
    """One microbatch on one rank: `tokens` [micro_batch_size, seq_length / cp], and the rest."""

    def __init__(
        self, case: MegatronCase, tokens: torch.Tensor, labels: torch.Tensor | None = None
    ) -> None:
        s, device = case.local_seq_length, tokens.device
        self.reports = labels is not None
        self.tokens, self.labels = tokens, tokens if labels is None else labels
        self.position_ids = torch.arange(s, device=device)[None].expand(case.micro_batch_size, s)
        self.loss_mask = torch.ones(case.micro_batch_size, s, dtype=torch.float32, device=device)
        # multi-token prediction masks the losses of its depths inside the model
        self.inside = {"loss_mask": self.loss_mask} if case.mtp_num_layers else {}
        self.attention_mask: torch.Tensor | None = None
        if case.attention == CoreAttention.UNFUSED:
            self.attention_mask = torch.ones(1, 1, s, s, dtype=torch.bool, device=device).triu(1)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the batch."""
        found = [self.tokens, self.labels, self.position_ids, self.loss_mask, self.attention_mask]
        return [tensor for tensor in found if tensor is not None]

    def forward(self, model: Any) -> torch.Tensor:
        """The model's output: hidden states, or the loss of every token on the last stage."""
        out: torch.Tensor = model(
            self.tokens, self.position_ids, self.attention_mask, labels=self.labels, **self.inside
        )
        return out

    def loss(self, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Sum of the masked losses and the token count, as `pretrain_gpt.py` computes them."""
        mask = self.loss_mask.view(-1)
        total = torch.sum(losses.view(-1).float() * mask)
        count = mask.sum().detach().to(torch.int)
        return total, count, {"loss": total.detach() / count} if self.reports else {}


def fake_batch(case: MegatronCase) -> Batch:
    """A batch without meaning, which all microbatches may share."""
    return Batch(case, torch.zeros(case.micro_batch_size, case.local_seq_length, dtype=torch.long))


class Microbatches:
    """This rank's microbatches by number; sequence i of the global batch depends on the seed and
    on i alone. Every pipeline and tensor-parallel rank makes the same tokens."""

    def __init__(
        self, case: MegatronCase, vocab_size: int, seed: int, device: torch.device
    ) -> None:
        self._case, self._vocab_size, self._seed = case, vocab_size, seed
        self.device = device
        self._made: dict[int, Batch] = {}

    def __call__(self, number: int) -> Batch:
        """Microbatch `number`, made once."""
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Batch:
        case, size = self._case, self._case.micro_batch_size
        data_rank = int(parallel_state.get_data_parallel_rank())
        first = (data_rank * case.num_microbatches + number) * size
        numbers = range(first, first + size)
        rows = torch.stack(
            [random_tokens(self._seed, i, self._vocab_size, case.seq_length) for i in numbers]
        )
        rows = rows.to(self.device)
        start = parallel_state.get_context_parallel_rank() * case.local_seq_length
        window = slice(start, start + case.local_seq_length)
        return Batch(
            case, rows[:, :-1][:, window].contiguous(), rows[:, 1:][:, window].contiguous()
        )
