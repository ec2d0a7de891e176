"""What `--solve`, and `--gpus` with several GPUs, answer: a row for each value that was asked for.

Keys may be added; while SCHEMA_VERSION is 1 none is renamed or removed.
"""

from typing import Any, Final

from msgspec import Struct

from advisor.answer.advice import Candidate, frame
from advisor.base.fields import join_key_values
from advisor.base.plain_json import to_plain, to_text
from advisor.base.units import in_gib
from advisor.job.layout import SHORT_NAMES

SCHEMA_VERSION: Final = 1
_FIGURES: Final = (
    *("micro_batch_size", "fits", "fit_probability", "peak_reserved_bytes"),
    *("budget_bytes", "step_time_seconds", "tokens_per_second", "tokens_per_second_per_gpu"),
    *("gpu_hours_per_trillion_tokens", "price_per_trillion_tokens"),
)


class Trial(Struct, frozen=True, kw_only=True):
    """One value of a quantity, and the row that its answer names.

    Attributes:
        value: GPUs, tokens of a sequence, sequences of a batch, or bytes of each GPU.
        gpus: COUNTxTYPE.
        asks: the flags that ask for this value, next to those of the request.
        best: null where the value is refused.
        refused: why it is.
    """

    value: int
    gpus: str
    asks: str = ""
    best: Candidate | None = None
    refused: str = ""

    @property
    def fits(self) -> bool:
        """Whether the job fits with this value."""
        return self.best is not None and self.best.fits


class Solution(Struct, frozen=True, kw_only=True):
    """The hardest value of a quantity that fits, or the fastest of several GPUs.

    Attributes:
        quantity: ``gpus``, ``seq_length``, ``tokens``, ``micro_batch_size``,
            ``global_batch_size`` or ``memory``; ``several_gpus`` of a comparison.
        model, framework: of the job.
        certainty: probability from which a value fits.
        verdict: the answer in a sentence or three.
        trials: what was asked for, the easiest first; several GPUs in their order.
        best: null where nothing fits.
        next_harder: one step beyond `best`, which does not fit; null where there is none.
        beyond: a harder value, of a job of which more may change than was typed.
    """

    schema_version: int = SCHEMA_VERSION
    quantity: str
    model: str
    framework: str
    certainty: float
    verdict: str
    trials: tuple[Trial, ...]
    best: Trial | None = None
    next_harder: Trial | None = None
    beyond: Trial | None = None

    @property
    def value(self) -> int | None:
        """The hardest that fits; None where nothing does."""
        return self.best.value if self.best else None

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per trial, in bytes and seconds: the columns of `--format csv`."""
        return [_row(trial) for trial in self.trials]

    def table(self) -> Any:
        """`rows` as a pandas.DataFrame, sizes in GiB; UserError if pandas is not installed."""
        return frame(list(map(in_gib, self.rows())))

    def to_json(self) -> str:
        """What `--solve … --format json` prints."""
        return to_text(self)


def _row(trial: Trial) -> dict[str, Any]:
    best = trial.best
    degrees = {name: getattr(best.layout, name) if best else None for name in SHORT_NAMES.values()}
    figures = {name: to_plain(getattr(best, name)) if best else None for name in _FIGURES}
    said = {
        "recompute": best.recompute.spec if best else None,
        "changes": join_key_values(best.changes) if best else None,
    }
    return {"value": trial.value, "gpus": trial.gpus, **said, **degrees, **figures}
