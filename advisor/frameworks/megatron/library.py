"""What the recipes of NeMo's and Megatron Bridge's libraries have in common.

Sources: nemo_toolkit 2.5.3 collections/llm/gpt/model/base.py and recipes/ (bf16_mixed and its 8-bit
forms; pretrain_performance_optimizations, which NeMo's published step times were measured with);
Megatron Bridge 0.3.1 models/gpt_provider.py, training/mixed_precision.py, training/comm_overlap.py.
"""

from typing import Any, Final

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.names import Framework
from advisor.models.options import CrossEntropyFusion
from advisor.models.spec import ModelSpec

_GATHERED: Final = (Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.MXFP8)
"""Recipes whose mixed precision keeps the linear layers' weights in 8 bits (fp8_param_gather)."""
_YAML_ALONE: Final = "1"
"""NeMo 1, whose jobs are YAML files with each option written out."""


def recipe_options(
    framework: Framework, model: ModelSpec, precision: Precision, version: str
) -> dict[str, Any]:
    """Both fuse the loss and gather weights in 8 bits. NeMo 2's performance mode reduces gradients
    in 16 bits, and overlaps the communication of TP in its dense models; Bridge's recipes reduce in
    fp32 and overlap nothing of TP unless they say so."""
    nemo = framework == Framework.NEMO
    if nemo and version == _YAML_ALONE:
        return {}
    options: dict[str, Any] = {"cross_entropy_fusion": CrossEntropyFusion.NATIVE}
    if precision in _GATHERED:
        options["fp8_param_gather"] = True
    if nemo:
        options["main_grads_dtype"] = DType.BF16
        options["tp_comm_overlap"] = model.num_moe_experts is None
    return options
