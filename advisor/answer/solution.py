"""What `--solve`, and `--gpus` with several GPUs, answer: a row for each value that was asked for.

Sizes are bytes, times seconds, rates per second. Keys may be added; while SCHEMA_VERSION is 1 none
is renamed or removed.
"""

from typing import Any, Final

from msgspec import Struct, field

from advisor.answer.advice import Advice
from advisor.base.plain_json import to_plain, to_text

SCHEMA_VERSION: Final = 1


class Trial(Struct, frozen=True, kw_only=True):
    """One value, and the row that the answer to it names; its figures are null or empty where the
    value is `refused`, and why.

    Attributes:
        value: GPUs, tokens of a sequence, sequences of a batch, bytes of each GPU.
        gpus: COUNTxTYPE.
        layout: degrees above 1 (``TP 2, PP 4``).
        changes: ``GROUP.FIELD`` -> value: options that this row has and the first job has not.
        asks: flags that ask for the value, next to those of the request.
    """

    value: int
    gpus: str
    fits: bool = False
    fit_probability: float | None = None
    recompute: str = ""
    layout: str = ""
    micro_batch_size: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    peak_reserved_bytes: int | None = None
    budget_bytes: int | None = None
    step_time_seconds: float | None = None
    tokens_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    gpu_hours_per_trillion_tokens: float | None = None
    price_per_trillion_tokens: float | None = None
    refused: str = ""
    asks: str = ""


class Solution(Struct, frozen=True, kw_only=True):
    """The hardest value that fits of one quantity, or the fastest of several GPUs.

    Attributes:
        quantity: ``gpus``, ``seq_length``, ``micro_batch_size``, ``global_batch_size``, ``memory``;
            ``several_gpus`` of a comparison.
        certainty: probability from which a value fits.
        verdict: the answer in a sentence.
        trials: what was asked for; of a comparison in the order of the GPUs.
        best: None where nothing fits.
        next_harder: one step beyond `best`, which does not fit; None where there is none.
        beyond: a harder value of a job of which more may change than was typed.
        advice: the answer to the request that asks for `best`, whose flags are to be used.
    """

    schema_version: int = SCHEMA_VERSION
    quantity: str
    certainty: float
    verdict: str
    trials: tuple[Trial, ...]
    best: Trial | None = None
    next_harder: Trial | None = None
    beyond: Trial | None = None
    advice: Advice | None = None

    @property
    def value(self) -> int | None:
        """The hardest that fits; None where nothing does."""
        return self.best.value if self.best else None

    def rows(self) -> list[dict[str, Any]]:
        """`trials` as plain rows, one column a field."""
        return [to_plain(trial) for trial in self.trials]

    def to_json(self) -> str:
        """What `--solve … --format json` prints."""
        return to_text(self)
