"""Vision towers and models that see of transformers, for one RankShape."""

from typing import Any

import torch
from torch import nn

from advisor.layers.shape import RankShape
from advisor.models.layer_kind import LayerKind, Mixer

from .blocks import llama_widths


def config_of(shape: RankShape) -> Any:
    """Qwen2.5-VL's, or Qwen3-VL's where the tower has learned positions."""
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

    model, tower = shape.model, shape.model.vision
    assert tower is not None
    text = llama_widths(model) | {
        "num_hidden_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "use_cache": False,
    }
    vision: dict[str, Any] = {
        "depth": tower.num_layers,
        "hidden_size": tower.hidden_size,
        "intermediate_size": tower.ffn_hidden_size,
        "num_heads": tower.num_attention_heads,
        "patch_size": tower.patch_size,
        "out_hidden_size": model.hidden_size,
    }
    ours = {"image_token_id": 7, "vision_start_token_id": 5, "tie_word_embeddings": False}
    if tower.num_position_embeddings is None:
        vision |= {
            "window_size": tower.window_size,
            "fullatt_block_indexes": list(tower.full_attention_layers),
        }
        text["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [16, 24, 24],
        }
        config: Any = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ours)
    else:
        vision["deepstack_visual_indexes"] = list(tower.deepstack_layers)
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **ours)
    config._attn_implementation = "sdpa"
    return config


def tower_block(
    shape: RankShape, kind: LayerKind
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A block, and what follows the hidden states in a call."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionBlock
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionBlock

    config, tower, inner = config_of(shape), shape.model.vision, shape.tower
    assert tower is not None
    learned = tower.num_position_embeddings is not None
    with torch.device("meta"):
        made = (Qwen3VLVisionBlock if learned else Qwen2_5_VLVisionBlock)(config.vision_config)
    made.to_empty(device="cpu")
    patches, length = inner.seq_length, inner.seq_length // inner.images
    if kind.mixer is Mixer.SLIDING_WINDOW:
        length = tower.window_patches or length
    ends = torch.arange(0, patches + 1, length, dtype=torch.int32)
    channels = tower.hidden_size // tower.num_attention_heads
    tables = tuple(torch.zeros(patches, channels, dtype=torch.float32) for _ in range(2))
    return made, (ends,), {"position_embeddings": tables}


def whole_model(shape: RankShape) -> Any:
    """The whole model with its weights in bf16."""
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

    tower = shape.model.vision
    assert tower is not None
    learned = tower.num_position_embeddings is not None
    cls = Qwen3VLForConditionalGeneration if learned else Qwen2_5_VLForConditionalGeneration
    with torch.device("meta"):
        model = cls._from_config(config_of(shape), dtype=torch.bfloat16)
    for module in model.modules():  # what is computed when a model is made
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros_like(buffer, device="cpu"))
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.zeros_like(weight, device="cpu")))
    return model.train()


def inputs(shape: RankShape) -> dict[str, torch.Tensor]:
    """Tokens and labels of a microbatch with its images, which are squares."""
    tower, inner = shape.model.vision, shape.tower
    assert tower is not None
    size = shape.micro_batch_size, shape.seq_length
    tokens = torch.zeros(size, dtype=torch.int64)
    tokens[:, 1 : 1 + shape.image_tokens] = 7
    side = int((inner.seq_length // inner.images) ** 0.5)
    grid = torch.tensor([[1, side, side]] * inner.images)
    assert int(grid.prod(-1).sum()) == inner.seq_length
    pixels = torch.zeros(inner.seq_length, tower.patch_width, dtype=torch.float32)
    kinds = (tokens == 7).int()
    return {
        "input_ids": tokens,
        "labels": tokens.clone(),
        "pixel_values": pixels,
        "image_grid_thw": grid,
        "mm_token_type_ids": kinds,
    }
