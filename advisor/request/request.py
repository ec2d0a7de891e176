"""What the command line asks for, before anything is looked up or chosen."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from advisor.base.fields import key_of

if TYPE_CHECKING:
    from advisor.models.presets import ModelSource


class SearchScope(StrEnum):
    """`--search`: what may vary next to the recompute setting."""

    RECOMPUTE = "recompute"
    LAYOUT = "layout"
    OPTIMUM = "optimum"


class Quantity(StrEnum):
    """`--solve`: what is looked for."""

    GPUS = "gpus"
    SEQ_LENGTH = "seq_length"
    MICRO_BATCH_SIZE = "micro_batch_size"
    GLOBAL_BATCH_SIZE = "global_batch_size"
    MEMORY = "memory"
    TOKENS = "tokens"


class Request(Struct, frozen=True, kw_only=True):
    """A request to `advise`, before anything is looked up. None is a value that is not given: it
    comes from the preset or is chosen.

    Attributes:
        lengths, packing, max_tokens_per_gpu: what samples are like, short for ``samples.lengths``,
            ``samples.packing`` and ``samples.token_budget``.
        calibration: folders of measured runs to learn from, and at most one calibration file.
        takes_recipe: whether values that are not given may come from a published recipe; otherwise
            they are the framework's defaults, as for a launch script, and no degree is searched.
        quick: whether the answer is for the job as typed alone, and nothing faster is looked for.
        omitted: paths of the given values that are only defaults of the framework.
        source: the launch script or configuration that it was read from; empty for none.
    """

    model: "ModelSource"
    gpus: str
    seq_length: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    lengths: str | None = None
    packing: str | None = None
    max_tokens_per_gpu: int | None = None
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
    certainty: float | None = None
    overrides: tuple[str, ...] = ()
    config_dir: Path | None = None
    calibration: tuple[Path, ...] = ()
    takes_recipe: bool = True
    quick: bool = False
    omitted: tuple[str, ...] = ()
    source: str = ""

    def __repr__(self) -> str:
        """What it says, less what is a default of the framework."""
        own = tuple(one for one in self.overrides if key_of(one) not in self.omitted)
        said = asdict(self) | {"omitted": None, "overrides": own}
        return f"Request({', '.join(f'{k}={v!r}' for k, v in said.items() if v or v == 0)})"
