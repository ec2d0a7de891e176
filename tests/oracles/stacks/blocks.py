"""The blocks of torchtitan and transformers for one RankShape, with their other arguments."""

from typing import Any

import torch
from torch import nn

from advisor.layers.shape import RankShape
from advisor.models.layer_kind import Mixer
from advisor.models.options import Normalization, TransformerImpl
from advisor.models.spec import ModelSpec

from .expert_blocks import TOKENS, Block, titan_block, transformers_block
from .titan import import_titan


def block(shape: RankShape, layer: int = 0) -> Block:
    """A block of the shape's implementation, and what follows the hidden states in a call."""
    model = shape.model
    if model.norm_placement.after:
        return _variant(shape, layer)
    if model.num_moe_experts is not None:
        torch_impl = model.transformer_impl is TransformerImpl.TORCH
        return (titan_block if torch_impl else transformers_block)(shape)
    if model.transformer_impl is TransformerImpl.TORCH:
        if model.normalization is Normalization.LAYER_NORM:
            return PlainGpt(model), (), {}
        return _titan(shape)
    return _gpt2(model) if model.normalization is Normalization.LAYER_NORM else _llama(shape)


def llama_arguments(model: ModelSpec, layers: int, **more: int) -> Any:
    """torchtitan's arguments of Llama, whose FeedForward rounds 8/3 of dim up to a multiple: one
    multiple of ffn_hidden_size."""
    return import_titan("models.llama3.model.args").TransformerModelArgs(
        dim=model.hidden_size,
        n_layers=layers,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.num_query_groups,
        multiple_of=model.ffn_hidden_size,
        ffn_dim_multiplier=model.ffn_hidden_size / (8 * model.hidden_size),
        **more,
    )


def llama_widths(model: ModelSpec) -> dict[str, int]:
    """Fields of transformers' LlamaConfig, and of Qwen3's."""
    return {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "head_dim": model.kv_channels,
        "num_key_value_heads": model.num_query_groups,
        **TOKENS,
    }


def _titan(shape: RankShape) -> Block:
    model = shape.model
    name = "qwen3" if model.qk_layernorm else "llama3"
    package = import_titan(f"models.{name}.model.model")
    if model.qk_layernorm:
        arguments = import_titan("models.qwen3.model.args").Qwen3ModelArgs(
            dim=model.hidden_size,
            n_layers=1,
            n_heads=model.num_attention_heads,
            n_kv_heads=model.num_query_groups,
            head_dim=model.kv_channels,
            hidden_dim=model.ffn_hidden_size,
            qk_norm=True,
        )
        cache = torch.empty(shape.seq_length, 2 * model.kv_channels, dtype=torch.float32)
    else:
        arguments = llama_arguments(model, 1)
        cache = torch.empty(shape.seq_length, model.kv_channels // 2, dtype=torch.complex64)
    made = package.TransformerBlock(0, arguments)
    return made, (cache, None), {}


def _llama(shape: RankShape) -> Block:
    model = shape.model
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Config, Qwen2DecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3DecoderLayer

    config_class, layer_class = LlamaConfig, LlamaDecoderLayer
    if model.qk_layernorm:
        config_class, layer_class = Qwen3Config, Qwen3DecoderLayer
    if model.add_qkv_bias:
        config_class, layer_class = Qwen2Config, Qwen2DecoderLayer
    config = config_class(**llama_widths(model), num_hidden_layers=1, vocab_size=8)
    config._attn_implementation = "eager" if shape.eager_attention else "sdpa"
    tables = tuple(torch.empty(1, shape.seq_length, model.kv_channels) for _ in range(2))
    named: dict[str, Any] = {"position_embeddings": tables}
    if shape.eager_attention:
        size = (shape.micro_batch_size, 1, shape.seq_length, shape.seq_length)
        named["attention_mask"] = torch.empty(size)
    return layer_class(config, 0), (), named


def variant_config(model: ModelSpec) -> Any:
    """The configuration of Gemma 2, 3 or 4, or of OLMo 2, with the model's shape."""
    from transformers import Gemma2Config, Gemma3TextConfig, Gemma4TextConfig, Olmo2Config

    shared: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "vocab_size": model.vocab_size,
        "num_key_value_heads": model.num_query_groups,
        "num_hidden_layers": model.num_layers,
        "use_cache": False,
    }
    if not model.norm_placement.before:
        config = Olmo2Config(**shared)
    else:
        windows = [kind.mixer for kind in model.layer_kinds]
        types = [str(Mixer(mixer)).replace("window_", "") for mixer in windows]
        cls = Gemma3TextConfig if model.attn_logit_softcapping is None else Gemma2Config
        if model.global_kv_channels is not None:
            cls = Gemma4TextConfig
            shared |= {
                "global_head_dim": model.global_kv_channels,
                "num_global_key_value_heads": model.num_global_query_groups,
                "attention_k_eq_v": model.attention_k_eq_v,
                "final_logit_softcapping": model.final_logit_softcapping,
                "hidden_size_per_layer_input": model.hidden_size_per_layer_input or 0,
                "vocab_size_per_layer_input": model.vocab_size_per_layer_input or model.vocab_size,
                "num_kv_shared_layers": model.num_kv_shared_layers,
                "use_double_wide_mlp": model.use_double_wide_mlp,
                "enable_moe_block": model.moe_separate_norms,
                "num_experts": model.num_moe_experts,
                "top_k_experts": model.moe_router_topk,
                "moe_intermediate_size": model.moe_ffn_hidden_size,
            }
        config = cls(
            **shared,
            head_dim=model.kv_channels,
            layer_types=types,
            sliding_window=model.window_size,
        )
    config._attn_implementation = "eager" if model.attn_logit_softcapping else "sdpa"
    if model.moe_grouped_gemm:
        config._experts_implementation = "grouped_mm"
    return config


def sliding_mask(config: Any, hidden: torch.Tensor) -> Any:
    """Of a layer with a window, as the model makes it for `hidden` [batch, sequence, ...]."""
    from transformers.masking_utils import create_sliding_window_causal_mask

    return create_sliding_window_causal_mask(
        config=config,
        inputs_embeds=hidden,
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(hidden.shape[1])[None],
    )


def _variant(shape: RankShape, layer: int) -> Block:
    """A layer, with the mask that the model would make for it, and what earlier ones hand on."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer
    from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextDecoderLayer
    from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer

    layers = {
        "gemma2": Gemma2DecoderLayer,
        "gemma3_text": Gemma3DecoderLayer,
        "gemma4_text": Gemma4TextDecoderLayer,
        "olmo2": Olmo2DecoderLayer,
    }
    config, kind = variant_config(shape.model), shape.model.layer_kinds[layer]
    model, mask = shape.model.of_kind(kind), None
    if kind.mixer is Mixer.SLIDING_WINDOW:
        embeds = torch.empty(shape.micro_batch_size, shape.seq_length, 1)
        mask = sliding_mask(config, embeds)
    dtype = torch.get_default_dtype() if model.norm_placement.before else torch.float32
    size = 1, shape.seq_length, model.kv_channels
    tables = tuple(torch.empty(size, dtype=dtype) for _ in range(2))
    named: dict[str, Any] = {"position_embeddings": tables, "attention_mask": mask}
    rest: tuple[Any, ...] = ()
    tokens = shape.micro_batch_size, shape.seq_length
    if model.hidden_size_per_layer_input is not None:
        size = *tokens, model.num_layers, model.hidden_size_per_layer_input
        rest = (torch.empty(size, requires_grad=True)[:, :, layer],)
    if config.model_type == "gemma4_text":
        size = *tokens, model.num_query_groups, model.kv_channels
        made = tuple(torch.empty(size, requires_grad=True) for _ in range(2))
        shared = {config.layer_types[layer]: tuple(one.transpose(1, 2) for one in made)}
        named["shared_kv_states"] = shared if kind.reuses_keys else {}
    return layers[config.model_type](config, layer), rest, named


def _gpt2(model: ModelSpec) -> Block:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2Config

    config = GPT2Config(
        n_embd=model.hidden_size,
        n_inner=model.ffn_hidden_size,
        n_head=model.num_attention_heads,
        n_layer=1,
        vocab_size=8,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=model.hidden_dropout,
        attn_pdrop=model.attention_dropout,
    )
    config._attn_implementation = "sdpa"
    made = GPT2Block(config, 0)
    return made, (), {}


class PlainGpt(nn.Module):
    """A GPT block of torch's own modules, in the order of torchtitan's Llama."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        h, f = model.hidden_size, model.ffn_hidden_size
        self.heads = model.num_attention_heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(h, h) for _ in range(4))
        self.w1, self.w2 = nn.Linear(h, f), nn.Linear(f, h)
        self.dropout = nn.Dropout(model.hidden_dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.dropout(self._attention(self.attention_norm(x)))
        return h + self.dropout(self._feed_forward(self.ffn_norm(h)))

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.gelu(self.w1(x)))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (
            w(x).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(b, s, -1))
