"""Fields of torchtitan's configuration in the order of 0.2.2 config/job_config.py, which a TOML
file or options set; of activation_checkpoint and parallelism all that 0.1 to 0.2 have."""

from typing import Any, Final

from advisor.base.dtypes import Precision
from advisor.frameworks.option import Option, key, listed, modelled
from advisor.job.job import COMPILED

AC: Final = "activation_checkpoint"
PARALLELISM: Final = "parallelism"
MODES: Final = ("none", "full", "selective", "memory_budget")
SECTIONS: Final = (
    *(PARALLELISM, "training", AC, "model", "compile", "job", "optimizer", "float8", "quantize"),
)
CONVERTERS: Final = "model.converters"
ASYNC_TP: Final = f"{PARALLELISM}.enable_async_tensor_parallel"
COMPILED_ASYNC_TP: Final = "compile.enable_async_tensor_parallel"
COMPONENTS: Final = "compile.components"
_FLOAT8: Final = ("quantize.linear.float8", "float8")
"""Sections of 0.2, and of 0.1."""
GATHER: Final = "enable_fsdp_float8_all_gather"


def _precision(value: Any) -> str | None:
    """Of a model whose converters are float8's alone."""
    names = {*value} if isinstance(value, list) else {value}
    return str(Precision.FP8_CURRENT) if names and names <= {*_FLOAT8, "float8"} else None


def components(value: Any) -> tuple[str, ...]:
    """What a list names, or a text with commas; torchtitan passes over other names."""
    named = value if isinstance(value, list) else str(value).split(",")
    return tuple(name for name in COMPILED if name in named)


OPTIONS: Final[tuple[Option, ...]] = (
    *modelled("torchtitan"),
    key(CONVERTERS, None, "job.precision", kind=object, means=_precision),
    key(COMPONENTS, COMPILED, "job.compile_components", means=components),
    *listed("torchtitan"),
)
