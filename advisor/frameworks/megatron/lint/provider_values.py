"""Fusions that a model's class sets in Megatron Bridge and NeMo 2, where no recipe says them.

TransformerConfig has both off. Sources: Megatron Bridge 0.3.1 and 0.6.0 models/*_provider.py and
*_bridge.py, recipes/; nemo_toolkit 2.5.3 collections/llm/gpt/model.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.names import Framework
from advisor.reading.read_configuration import ReadValue

_ROPE: Final = "apply_rope_fusion"
_ACTIVATION: Final = "bias_activation_fusion"
_ON: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    Framework.MEGATRON_BRIDGE: {
        _ROPE: ("llama2", "llama3", "nemotron4"),
        _ACTIVATION: (*("llama", "nemotron", "gpt", "deepseek"), *("kimi", "moonlight", "glm")),
    },
    Framework.NEMO: {
        _ROPE: ("llama2", "llama3", "mixtral", "nemotron4"),
        _ACTIVATION: ("llama", "nemotron", "gpt", "deepseek", "mixtral"),
    },
}
"""Families whose class sets a fusion."""
_OWN_FUSIONS: Final = re.compile(r"\d+gpu_|perf_recipes|scripts/performance|setup_experiment\.py")
"""Performance scripts, and recipes for a number of GPUs, which set them."""


def provider_values(
    read: ReadSettings, said: Mapping[str, ReadValue]
) -> Iterator[tuple[str, ReadValue]]:
    """Both fusions of the model that the configuration names; nothing of performance scripts and
    recipes, which set their own, of NeMo 1, and where every field is written out."""
    families = _ON.get(read.given.framework)
    if families is None or not read.partial or not read.model or read.given.version == "1":
        return
    if any(_OWN_FUSIONS.search(text) for text in read.texts):
        return
    for name, fused in families.items():
        if name not in said:
            written = f"{read.model} in the library"
            value = read.model.startswith(fused)
            yield (
                f"model.{name}",
                ReadValue(value=value, written=written, place=read.place, unsaid=True),
            )
