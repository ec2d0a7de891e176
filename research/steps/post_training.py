"""What a step of prime-rl takes that its kernels do not explain: two constants, fitted.

python -m research.steps.post_training      both, with rows left out: a GPU, a size, a model

Seconds for each trained parameter, whatever its size (gradients are looked at one by one), and the
part of the memory's bandwidth that the loop over the vocabulary reached in the trainer of January
2026. Both enter a step linearly: least squares of relative errors.
"""

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

import numpy as np

from advisor.frameworks.prime_rl.framework import READER, parts
from advisor.hardware.calibration import load_calibration
from advisor.job.loss_head import HeadImplementation
from advisor.layers.heads.chunked import CHUNKED
from advisor.memory.static import trained_parameters
from advisor.search.evaluate import Evaluator
from research.rows.prime_rl import prime_rl_job, prime_rl_rows
from research.rows.row import Row

HOPPER = ("H100", "H200")
"""On Blackwell the kernels were others (research.rows.prime_rl); the A6000 has no calibration."""
_HEAD = HeadImplementation.PRIME_RL_VOCABULARY


class Step(NamedTuple):
    """A row: seconds measured, those predicted without both constants, what each adds to a step:
    of one more byte an element of the logits, and for one second a parameter."""

    row: Row
    measured: float
    without: float
    of_a_byte: float
    parameters: int


def steps() -> list[Step]:
    """All on Hopper."""
    rows = [row for row in prime_rl_rows() if row["gpu"].startswith(HOPPER) and row["step_time_s"]]
    return [_step(row) for row in rows]


def _step(row: Row) -> Step:
    job, setting = prime_rl_job(row)
    evaluator = Evaluator(job, load_calibration(job.gpu))
    shape, head = evaluator.shape, CHUNKED[_HEAD]
    parameters = trained_parameters(shape, evaluator.stages[0])
    of_a_byte = 0.0
    if job.config.head.implementation is _HEAD:
        logits = shape.tokens * job.num_microbatches * job.model.vocab_size
        of_a_byte = logits / evaluator.rates.machine.memory_bytes_per_second
    fitted = parts().memory.parameter_seconds * parameters
    fitted += of_a_byte * sum(head.passes) * (1 / head.pace - 1)
    without = evaluator.seconds(setting) - fitted
    return Step(row, float(row["step_time_s"]), without, of_a_byte, parameters)


def fit(rows: list[Step]) -> tuple[float, float]:
    """Pace of the loop, and seconds for a parameter."""
    scaled = [(one.of_a_byte / one.measured, one.parameters / one.measured) for one in rows]
    missing = [1 - one.without / one.measured for one in rows]
    (more, seconds), *_ = np.linalg.lstsq(np.array(scaled), np.array(missing), rcond=None)
    code = sum(CHUNKED[_HEAD].passes)
    return float(code / (code + more)), float(seconds)


def errors(rows: list[Step], pace: float, seconds: float) -> list[float]:
    """Predicted over measured, less one."""
    more = sum(CHUNKED[_HEAD].passes) * (1 / pace - 1)
    return [
        (one.without + more * one.of_a_byte + seconds * one.parameters) / one.measured - 1
        for one in rows
    ]


def main() -> None:
    """Print the fit, and what is left out by GPU, by number of GPUs and by model."""
    every, label = steps(), READER.label
    cuts: dict[str, Callable[[Row], bool]] = {
        "H200 left out": lambda row: row["gpu"] == "H200",
        "8 GPUs left out": lambda row: row["num_gpus"] == "8",
        "0.6B left out": lambda row: "0.6B" in row["model"],
    }
    for name, is_out in cuts.items():
        rows = [one for one in every if not is_out(one.row)]
        left = [one for one in every if is_out(one.row)]
        constants = fit(rows)
        inside, outside = (list(map(abs, errors(part, *constants))) for part in (rows, left))
        print(
            f"{label}, {name}: pace {constants[0]:.3f}, {constants[1] * 1e6:.0f} us a parameter; "
            f"{len(rows)} rows mean {fmean(inside):.1%} worst {max(inside):.1%}; "
            f"{len(left)} left out mean {fmean(outside):.1%} worst {max(outside):.1%}"
        )


if __name__ == "__main__":
    main()
