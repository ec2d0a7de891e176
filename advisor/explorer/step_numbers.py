"""The page's data: columns of whole numbers, each text once, compressed.

Bytes are counted in units of 64 KiB, times in microseconds: finer than any picture. A text or list
that occurs again is a number of `pool`.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

from msgspec import Struct, field

from advisor.answer.evaluation import Evaluation, StageMemory, TimeBreakdown
from advisor.answer.phases import Phase
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.microbatches import microbatches
from advisor.memory.allocator import most_likely
from advisor.memory.events import Peak
from advisor.plan.schedule import chunk_order, held_tensors, num_warmup_passes
from advisor.search.evaluate import Evaluator
from advisor.step.layer_drawing import DrawnLayer, DrawnOperator, drawn_layers
from advisor.step.predicted_step import ChunkPass, PassSeconds, training_step

UNIT: Final = 1 << 16
"""Bytes of one unit."""
_SURE: Final = 1e-12
"""Probabilities are cut to this far from 0 and 1: 7 standard deviations."""
TIMES: Final = TimeBreakdown.__struct_fields__


class Pool(Struct, frozen=True):
    """Values that are written once, and their numbers."""

    values: list[Any] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        """The number of `value`, which is plain JSON."""
        key = f"text {value}" if isinstance(value, str) else json.dumps(value)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.values)
            self.values.append(value)
        return known


def units(num_bytes: float) -> int:
    """Bytes in units, rounded."""
    return round(num_bytes / UNIT)


def micros(seconds: float) -> int:
    """Seconds in microseconds, rounded."""
    return round(seconds * 1e6)


def stage_numbers(stage: StageMemory) -> list[int]:
    """What a setting adds to the stage's weights, gradients and optimizer: kept activations, the
    working set, what is reserved besides, all in units; microbatches in flight, in hundredths."""
    memory = stage.memory_bytes
    parts = (memory.activations, memory.transient, memory.overhead)
    return [*map(units, parts), round(stage.in_flight_microbatches * 100)]


def phase_numbers(phase: Phase) -> list[Any]:
    """Its name, its parts and its peak in units, the probability to fit, host memory, its note."""
    parts = [units(size) for size in phase.memory_bytes.parts.values()]
    peak, likely = units(phase.peak_reserved_bytes), round(phase.fit_probability, 4)
    return [phase.name, parts, peak, likely, units(phase.host_bytes), phase.note]


def times(evaluation: Evaluation) -> list[int]:
    """Microseconds of a step by what they are spent on, in the order of TIMES."""
    return [micros(getattr(evaluation.time_seconds, name)) for name in TIMES]


def clearance(evaluation: Evaluation) -> tuple[float, int, float]:
    """By how many standard deviations the row is clear of its budget, one of them in units, of the
    stage that is closest to it, and the most that it is likely to fit."""
    budget = evaluation.budget_bytes
    mean, sigma = min(evaluation.detail.needs, key=lambda need: (budget - need[0]) / need[1])
    stays = not (evaluation.phases or evaluation.exceeds_host)
    if type(evaluation.calibration) is Calibration and stays:
        return round((budget - mean) / sigma, 3), units(sigma), most_likely(evaluation.job.layout)
    learned = min(max(evaluation.fit_probability, _SURE), 1 - _SURE)
    return round(NormalDist().inv_cdf(learned), 3), units(sigma), 1.0


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows of equal keys as one list a key."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def packed(document: Any) -> str:
    """JSON, compressed as zlib does (RFC 1950, ``deflate`` to a browser), in base64."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return b64encode(zlib.compress(text.encode(), 9)).decode()


MOST_PASSES: Final = 40_000
"""Passes of all stages together above which the page draws no step: a second of its time."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def step_numbers(pool: Pool, evaluation: Evaluation, evaluator: Evaluator) -> dict[str, Any]:
    """Of every stage its static bytes, a hidden state, the optimizer's step, and its chunks; what
    comes after the pipeline, in microseconds."""
    step = training_step(evaluation, evaluator)
    tail, chunks = (
        step.tail,
        dict.fromkeys(chunk for stage in step.stages for chunk in stage.chunks),
    )
    numbers = {chunk: pool.number(_chunk(pool, chunk)) for chunk in chunks}
    return {
        "static": pool.number([units(stage.static_bytes) for stage in step.stages]),
        "chunks": pool.number([[numbers[one] for one in stage.chunks] for stage in step.stages]),
        "sent": units(step.stages[0].sent),
        "optimizer": pool.number([_peak(pool, stage.optimizer) for stage in step.stages]),
        "tail": [micros(part) for part in (tail.reduced, tail.accumulated, tail.optimizer)],
    }


def _peak(pool: Pool, peak: Peak) -> list[int]:
    return [units(peak.num_bytes), pool.number(peak.point)]


def _chunk(pool: Pool, chunk: ChunkPass) -> list[Any]:
    """Layers and ends; microseconds of both passes; kept, most in either pass with its operator,
    left."""
    return [
        [chunk.layers, int(chunk.embedding), int(chunk.head)],
        _pass(chunk.forward),
        _pass(chunk.backward),
        units(chunk.kept),
        _peak(pool, chunk.most_forward),
        _peak(pool, chunk.most_backward),
        units(chunk.left),
    ]


def _pass(parts: PassSeconds) -> list[int]:
    """Replay, compute, communication, offload, waiting for the host and for stragglers."""
    return [micros(getattr(parts, name)) for name in parts.__struct_fields__]


def schedule_numbers(pool: Pool, job: Job) -> int:
    """The number of the job's order of passes: chunks of the virtual microbatches in order, warm-up
    passes of every stage, hidden states held during each pass; -1 where passes are too many."""
    layout = job.layout
    pp, vpp = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    count = microbatches(job).mean.num_microbatches
    if 2 * pp * vpp * count > MOST_PASSES:
        return -1
    return pool.number(_schedule(pp, vpp, count))


@lru_cache(maxsize=1024)
def _schedule(pp: int, vpp: int, microbatches: int) -> dict[str, Any]:
    stages = range(pp)
    return {
        "order": _text(chunk_order(pp, vpp, microbatches)),
        "warmup": [num_warmup_passes(pp, vpp, microbatches, stage) for stage in stages],
        "held": [_text(held_tensors(pp, vpp, microbatches, stage)) for stage in stages],
    }


def _text(numbers: list[int] | tuple[int, ...]) -> str | list[int]:
    """One character a number where each has one."""
    if max(numbers) < len(_DIGITS):
        return "".join(_DIGITS[number] for number in numbers)
    return list(numbers)


def layer_numbers(pool: Pool, evaluation: Evaluation, evaluator: Evaluator) -> int:
    """The number of the row's layers."""
    return pool.number([_layer(pool, layer) for layer in drawn_layers(evaluation, evaluator)])


def _layer(pool: Pool, layer: DrawnLayer) -> list[Any]:
    """Kind, number, layers in one checkpoint, operators; of each operator nanoseconds of its replay
    and a letter a tensor (k, o, r); arguments of checkpoints in bytes, source."""
    return [
        pool.number(layer.kind),
        layer.layers,
        layer.together,
        pool.number([pool.number(_operator(one)) for one in layer.operators]),
        pool.number(
            [
                [round(one.replay_seconds * 1e9), "".join(t.fate[0] for t in one.tensors)]
                for one in layer.operators
            ]
        ),
        layer.arguments,
        pool.number(layer.source),
    ]


def _operator(one: DrawnOperator) -> list[Any]:
    tensors = [[t.name, list(t.shape), t.dtype, t.num_bytes] for t in one.tensors]
    seconds = [round(s * 1e9) for s in (one.forward_seconds, one.backward_seconds)]
    return [one.name, one.module, one.work, one.limit, *seconds, tensors]
