"""A parsed log as the result of a trial."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, convert, field
from msgspec.structs import replace

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.base.units import counted
from harness.logs.parse import ParsedLog
from harness.logs.records import LoggedStep, WholeRun
from harness.logs.workload import contradictions, stated_workload
from harness.measure.trust import SeenSteps, concerns, is_warm
from harness.trial.failures import Failure
from harness.trial.result import (
    Concern,
    Evidence,
    MemoryPeak,
    Phase,
    Reported,
    StepTimes,
    TrialResult,
    TrialStatus,
)
from harness.trial.trial import Device, MeasurementPlan, world_size

LOG: Final = "log"
STAMPS: Final = "log_stamps"
TIMERS: Final = "log_timers"


class Work(Struct, frozen=True, kw_only=True):
    """What one step of a run processes; None where nobody tells."""

    tokens_per_gpu: float | None = None
    samples: int | None = None


class TimedSteps(Struct, frozen=True, kw_only=True):
    """Steps with a time. interval: steps from line to line; missing: lines between them."""

    steps: tuple[LoggedStep, ...] = ()
    seconds: tuple[float, ...] = ()
    clock: str = LOG
    interval: int = 1
    missing: int = 0


def work_of(workload: Mapping[str, Any]) -> Work:
    """Work of one step of a workload as JSON, of which parts may be missing."""
    samples, length = workload.get("global_batch_size"), workload.get("seq_length")
    if samples is None or length is None:
        return Work(samples=samples)
    return Work(samples=samples, tokens_per_gpu=samples * length / world_size(workload))


def timed_steps(steps: Sequence[LoggedStep], work: Work) -> TimedSteps:
    """Every step whose time is known. Rates become times by the work of a step; timers of a step's
    parts stand where they tell of more steps, and where there is neither the distances of time
    stamps, which hold the writing of the log too."""
    known = [(step, seconds) for step in steps if (seconds := _seconds(step, work)) is not None]
    parts = [(step, step.timer_seconds) for step in steps if step.timer_seconds is not None]
    clock = LOG
    if len(parts) > len(known):
        known, clock = parts, TIMERS
    if not known:
        clock = STAMPS
        known = [
            (later, (later.stamp - earlier.stamp) / (later.number - earlier.number))
            for earlier, later in pairwise(steps)
            if earlier.stamp is not None and later.stamp is not None and later.stamp > earlier.stamp
        ]
    gaps = [later.number - earlier.number for (earlier, _), (later, _) in pairwise(known)]
    interval = Counter(gaps).most_common(1)[0][0] if gaps else 1
    return TimedSteps(
        steps=tuple(step for step, _ in known),
        seconds=tuple(seconds for _, seconds in known),
        clock=clock,
        interval=interval,
        missing=sum(gap // interval - 1 for gap in gaps if gap > interval),
    )


def _seconds(step: LoggedStep, work: Work) -> float | None:
    if step.seconds is not None:
        return step.seconds
    if step.tokens_per_second_per_gpu is not None and work.tokens_per_gpu is not None:
        return work.tokens_per_gpu / step.tokens_per_second_per_gpu
    if step.samples_per_second is not None and work.samples is not None:
        return work.samples / step.samples_per_second
    return None


PROVENANCE: Final = "parsed from log"
_DAMAGED: Final = (
    "the file is damaged or cut short, as its compression shows; --accept-incomplete uses what "
    "could be read"
)
_SHOWN: Final = 3
_NO_END: Final = "the end of the run is not in the log; --accept-incomplete uses the log anyway"


class LoggedRun(Struct, frozen=True, kw_only=True):
    """Of which run a log is. trial: as JSON, with its workload. done: the run is known to have come
    to its end, whatever the log shows; accept_incomplete: one that did not is good all the same."""

    name: str
    trial: dict[str, Any]
    plan: MeasurementPlan
    started_at: str
    device: Device = Device.CUDA
    wall_seconds: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    accept_incomplete: bool = False

    @property
    def workload(self) -> dict[str, Any]:
        """What was asked for."""
        found: dict[str, Any] = self.trial["workload"]
        return found


def result_of(parsed: ParsedLog, question: LoggedRun) -> TrialResult:
    """Status and numbers of the run; numbers only where it trained beyond the warm-up, and came to
    its end: of a log that was cut nobody knows what is missing."""
    bare = unmeasured(parsed, question)
    # a loss that is no number, or what ended the run before its time
    failure = not_a_number(parsed) or (None if parsed.ended else parsed.cause)
    if failure is not None:
        return failed(bare, parsed, failure)
    if parsed.damaged and not question.accept_incomplete:
        message = f"{', '.join(parsed.damaged)}: {_DAMAGED}"
        return failed(bare, parsed, Failure(TrialStatus.INCOMPLETE, message))
    stated = stated_workload(parsed.arguments)  # what is asked for decides
    layout = {**stated.get("layout", {}), **question.workload.get("layout", {})}
    timed = timed_steps(parsed.steps, work_of({**stated, **question.workload, "layout": layout}))
    cut = _warm_up(timed, question.plan, question.device)
    window = slice(cut, cut + question.plan.steps)
    if not timed.seconds[window]:
        whole = parsed.whole_run
        if whole is not None and whole.seconds is not None:
            return _of_whole_run(bare, parsed, question, whole)
        return failed(bare, parsed, Failure(TrialStatus.NO_DATA, _nothing(parsed)))
    if not (question.done or parsed.ended or question.accept_incomplete):
        return failed(bare, parsed, Failure(TrialStatus.INCOMPLETE, _NO_END))
    steps = timed.steps[window]
    seen = SeenSteps(seconds=timed.seconds[window], warmup_seconds=timed.seconds[:cut])
    times = StepTimes(
        seconds=seen.seconds,
        warmup_seconds=seen.warmup_seconds,
        clock=timed.clock,
        steps=tuple(step.number for step in steps),
    )
    reported = Reported(
        tflops_per_gpu=_complete([step.tflops_per_gpu for step in steps]),
        tokens_per_second_per_gpu=_complete([s.tokens_per_second_per_gpu for s in steps]),
    )
    found = *concerns(seen, question.plan, question.device), *_concerns(parsed, question, timed)
    bare = replace(bare, times=times, reported=reported)
    return _measured(bare, parsed, question, steps, found)


def _measured(
    timed: TrialResult,
    parsed: ParsedLog,
    question: LoggedRun,
    steps: Sequence[LoggedStep],
    found: Sequence[Concern],
) -> TrialResult:
    """A result that has its times, with its memory, losses, and what speaks against it. No losses
    where a step lacks one (a skipped iteration): they would be shifted."""
    return replace(
        timed,
        status=TrialStatus.UNSTABLE if any(concern.fatal for concern in found) else TrialStatus.OK,
        memory=_memory(parsed, question.workload),
        loss=_complete([step.loss for step in steps]),
        concerns=tuple(sorted(found, key=lambda concern: not concern.fatal)),
    )


def failed(bare: TrialResult, parsed: ParsedLog, failure: Failure) -> TrialResult:
    """`bare` with why there are no numbers."""
    evidence = Evidence(
        phase=Phase.TRAINING if parsed.steps else Phase.START,
        message=failure.message + (f" ({_last(parsed)})" if parsed.steps else ""),
        over_bytes=failure.over_bytes,
    )
    return replace(bare, status=failure.status, evidence=evidence)


def _last(parsed: ParsedLog) -> str:
    last = parsed.steps[-1] if parsed.steps else LoggedStep(number=0)
    return f"after step {last.number}" + ("" if last.total is None else f" of {last.total}")


def unmeasured(parsed: ParsedLog, question: LoggedRun) -> TrialResult:
    """The result of a run of which nothing but its log's framework is known yet."""
    source = {"provenance": PROVENANCE, "framework": str(parsed.framework or "unknown")}
    given = question.environment.get("source", {})
    return TrialResult(
        name=question.name,
        status=TrialStatus.NO_DATA,
        trial=question.trial,
        environment={**question.environment, "source": {**given, **source}},
        started_at=question.started_at,
        wall_seconds=question.wall_seconds,
    )


def not_a_number(parsed: ParsedLog) -> Failure | None:
    """The first loss that is NaN or infinite."""
    for step in parsed.steps:
        if step.loss is not None and not math.isfinite(step.loss):
            return Failure(TrialStatus.NAN, f"loss of step {step.number} is {step.loss}")
    return None


def _warm_up(timed: TimedSteps, plan: MeasurementPlan, device: Device) -> int:
    """Lines that are warm-up, by the usual rule; on a CPU as many whatever they took."""
    least = max(1, math.ceil(plan.min_warmup_steps / timed.interval))
    most = least if device is Device.CPU else plan.max_warmup_steps
    scaled = replace(plan, min_warmup_steps=least, max_warmup_steps=most)
    count = len(timed.seconds)
    return next((n for n in range(count) if is_warm(timed.seconds[:n], scaled)), count)


def _nothing(parsed: ParsedLog) -> str:
    lines = counted(parsed.lines, "line")
    if parsed.mistaken:
        return parsed.mistaken
    if parsed.framework is None:
        return f"no line of a known framework in {lines}"
    if not parsed.steps:
        mean = parsed.whole_run and parsed.whole_run.tflops_per_gpu
        words = f", but a mean of {mean:g} TFLOP/s/GPU since the job's start" if mean else ""
        return f"no step in {lines} of {parsed.framework}{words}"
    count = len(parsed.steps)
    if timed_steps(parsed.steps, Work()).seconds or parsed.steps[0].seconds:
        return f"all {count} logged steps are warm-up"
    return f"{count} logged steps, and none has a time"


def _of_whole_run(
    bare: TrialResult, parsed: ParsedLog, question: LoggedRun, whole: WholeRun
) -> TrialResult:
    """The mean over all steps: the only time there is, and one that holds the warm-up."""
    mean = _concern("whole_run_mean", "one mean step time of the whole run")
    found = (mean, *_concerns(parsed, question, TimedSteps()))
    assert whole.seconds is not None
    tokens = whole.tokens_per_second_per_gpu
    if whole.tokens_per_second is not None and question.workload.get("layout"):
        tokens = whole.tokens_per_second / world_size(question.workload)
    timed = replace(
        bare,
        times=StepTimes(seconds=(whole.seconds,), warmup_seconds=(), clock=LOG),
        reported=Reported(tokens_per_second_per_gpu=() if tokens is None else (tokens,)),
    )
    return _measured(timed, parsed, question, parsed.steps, found)


_ADVICE: Final = load_yaml(packaged_configs() / "failures" / "log_concerns.yaml").values
"""What speaks against numbers out of a log -> what should be there (limit), and what to do."""
_FATAL: Final = ("not_as_asked", "whole_run_mean")


def _concern(name: str, seen: str) -> Concern:
    texts = convert(_ADVICE[name], dict[str, str])
    return Concern(name=name, seen=seen, fatal=name in _FATAL, **texts)


def _concerns(parsed: ParsedLog, question: LoggedRun, timed: TimedSteps) -> Iterator[Concern]:
    """What speaks against numbers out of a log, except their scatter."""
    for text in contradictions(question.workload, parsed.arguments):
        yield _concern("not_as_asked", text)
    mean = parsed.whole_run.tflops_per_gpu if parsed.whole_run else None
    missing = timed.missing - parsed.unread
    first, more = parsed.odd_files[:_SHOWN], len(parsed.odd_files) - _SHOWN
    found = {
        "incomplete": not (question.done or parsed.ended) and f"the log ends {_last(parsed)}",
        "damaged_file": ", ".join(parsed.damaged),
        "rank_files": "; ".join([*first, f"and {more} more"] if more > 0 else first),
        "restarts": parsed.restarts and str(parsed.restarts),
        "log_interval": timed.interval > 1 and f"a line every {timed.interval} steps",
        "missing_lines": missing > 0 and f"{missing} between the first and the last step",
        "job_mean": mean is not None and f"{mean:g} TFLOP/s/GPU since the job's start",
        "engine_timers": timed.clock == TIMERS and "step times are fwd + bwd + step",
        "time_stamps": timed.clock == STAMPS and "step times are differences of time stamps",
    }
    yield from (_concern(name, str(seen)) for name, seen in found.items() if seen)


def _memory(parsed: ParsedLog, workload: Mapping[str, Any]) -> tuple[MemoryPeak, ...]:
    """Peaks by rank; the stage by Megatron's order of ranks, in which pipeline comes last."""
    stages = int(workload.get("layout", {}).get("pipeline_model_parallel_size", 1))
    ranks = world_size(workload)
    return tuple(
        MemoryPeak(
            rank=peak.rank or 0,
            stage=min(stages - 1, (peak.rank or 0) * stages // ranks),
            allocated=peak.allocated,
            reserved=peak.reserved,
        )
        for peak in parsed.peaks
    )


def _complete(values: Sequence[float | None]) -> tuple[float, ...]:
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()
