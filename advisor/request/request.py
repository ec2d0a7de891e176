"""What the command line asks for, before anything is looked up or chosen."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from advisor.models.presets import ModelSource


class SearchScope(StrEnum):
    """`--search`: what may vary beside the recompute setting."""

    RECOMPUTE = "recompute"
    LAYOUT = "layout"
    OPTIMUM = "optimum"


class Request(Struct, frozen=True, kw_only=True):
    """Raw values of `advise`; None means: not given, take the preset's or choose.

    takes_recipe: whether a published recipe may say what is not given; else it is the framework's
    default, as for a launch script, and no degree is searched. unsaid: paths of values among the
    others that are the framework's default, which nobody has said. calibration: folders of measured
    runs to learn from, and a calibration file.
    """

    model: "ModelSource"
    gpus: str
    seq_length: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    sequence_parallel: bool | None = None
    precision: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    recompute: tuple[str, ...] = ()
    search: SearchScope | None = None
    memory_budget: str | None = None
    overrides: tuple[str, ...] = ()
    config_dir: Path | None = None
    calibration: tuple[Path, ...] = ()
    takes_recipe: bool = True
    unsaid: tuple[str, ...] = ()
