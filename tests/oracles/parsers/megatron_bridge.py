"""Megatron Bridge: process_config_with_overrides over a ConfigContainer, and its validate().

The container is that of the recipes (recipes.common) with the objects that the performance recipes
set; the model's shape comes as overrides too. Stand-ins: those of Megatron-LM, and every package
that only Bridge asks for and this environment lacks.
"""

import logging
import shlex
import sys
from functools import cache
from types import ModuleType

from .absent import Absentees
from .megatron_lm import environment, training


UNSAID = {"moe_layer_freq", "window_size", "bias_activation_fusion"}
"""What of a model no override can say, or goes with a function that none can."""


@cache
def recipes() -> ModuleType:
    """megatron.bridge.recipes.common."""
    training()
    logging.disable()
    sys.meta_path.append(Absentees("bridge"))
    from megatron.bridge.recipes import common

    return common


def accept(question: str) -> None:
    """Raise what the program raises on overrides."""
    common = recipes()
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training.comm_overlap import CommOverlapConfig
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.mixed_precision import bf16_mixed
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    shape, line = question.split("\n")
    with environment(shlex.split(shape)) as model:
        latent = "model.multi_latent_attention=true" in model
        provider = MLAModelProvider if latent else GPTModelProvider
        provider = HybridModelProvider if "hybrid_layer_pattern" in shape else provider
        config = common._pretrain_common()
        config.model = provider(
            num_layers=2, hidden_size=64, num_attention_heads=8, vocab_size=512, seq_length=4096
        )
        config.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
        config.mixed_precision = bf16_mixed()
        names = vars(config.model).keys() - UNSAID
        known = [word for word in model if word[6:].partition("=")[0] in names]
        config = process_config_with_overrides(config, cli_overrides=[*known, *shlex.split(line)])
        runtime_config_update(config)
