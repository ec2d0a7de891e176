"""The report as a document: the verdict first, then every setting, then what it rests on."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from advisor.base.units import counted, human_bytes, milliseconds
from advisor.base.units import percent as probability
from harness.base.collections import known
from harness.execution.runner import MEASURED
from harness.judge.predicted import Pair, SettingOutcome, cells, judgement, or_dash, order_lines
from harness.judge.render import below, environment_lines, noted_rows, row_line, summary_line
from harness.judge.verdict import Verdict
from harness.report import evidence
from harness.report.document import Document, Picture, Section, Table, table_of
from harness.report.facts import Facts
from harness.trial.result import TrialStatus
from harness.trial.trial import Prediction

_QUIET: Final = (Verdict.PASS, Verdict.SKIPPED, Verdict.UNJUDGED)


def make_document(facts: Facts, pictures: tuple[Picture, ...]) -> Document:
    """Everything that is to be said of a run, with the pictures that were drawn."""
    drawn = {picture.name: picture for picture in pictures}

    def of(*names: str) -> tuple[Picture, ...]:
        return tuple(drawn[name] for name in names if name in drawn)

    comparison = facts.comparison
    device = "CPU (CPU times)" if facts.on_cpu else facts.plan.device_name
    return Document(
        title=f"{facts.plan.experiment} on {device}",
        subtitle=subject(facts),
        outcome=summary_line(comparison) if facts.judged else _tally(facts),
        good=comparison.exit_code == 0 if facts.judged else None,
        sections=(
            *verdict(facts),
            settings(facts, of("memory_and_time", "memory_and_throughput")),
            predicted(facts, of("predicted_and_measured")),
            evidence.memory(facts, of("memory_by_component")),
            evidence.flops(facts),
            *_one_step(evidence.phases(facts), of("timeline")),
            evidence.trust(facts),
            *evidence.failures(facts),
            evidence.environment(facts),
            evidence.calibration(facts),
            evidence.commands(facts),
        ),
    )


def subject(facts: Facts) -> str:
    """What was trained, on what, in one line."""
    workload = facts.plan.settings[0].trial.workload
    sizes = sorted({one.trial.workload.micro_batch_size for one in facts.plan.settings})
    words = (
        workload.model.name,
        facts.place.gpus if facts.place else facts.plan.device_name,
        str(workload.precision),
        f"sequence {workload.seq_length}",
        f"{'micro batch' if len(sizes) == 1 else 'micro batches'} {', '.join(map(str, sizes))}",
        f"global batch {workload.global_batch_size}",
        f"backend {workload.backend}",
        "all times are CPU times" if facts.on_cpu else "",
    )
    return " · ".join(filter(None, words))


def verdict(facts: Facts) -> tuple[Section, ...]:
    """The rows of the gate as the terminal has them, worst first; passes folded away."""
    if not facts.judged:
        return ()
    loud: list[str] = environment_lines(facts.comparison)
    quiet: list[str] = []
    for rows, *said in noted_rows(facts.comparison):
        lines = quiet if rows[0].verdict in _QUIET else loud
        lines += [*map(row_line, rows), *(f"      {one}" for one in below(rows, *said))]
    title = f"Passed, skipped or not judged: {sum(map(facts.comparison.count, _QUIET))}"
    folded = Section(title=title, lines=tuple(quiet), folded=True)
    shown = Section(title="Verdict", lines=tuple(loud))
    return (shown, folded) if quiet else (shown,)


def settings(facts: Facts, pictures: tuple[Picture, ...]) -> Section:
    """Every setting of the plan, whatever became of it."""
    rows = []
    for outcome in facts.found:
        numbers = facts.numbers(outcome.setting)
        fits = (outcome.setting.trial.prediction or Prediction()).fit_probability
        tokens = numbers.tokens_per_second_per_gpu
        rows.append(
            {
                "setting": outcome.name,
                "outcome": _status(outcome, facts),
                "advisor's rank": or_dash(outcome.setting.rank, str),
                "predicted to fit": or_dash(fits, probability),
                timed("step time", facts): or_dash(numbers.step_time_seconds, milliseconds),
                timed(facts.tokens_unit, facts): or_dash(tokens, "{:,.0f}".format),
                f"peak {facts.peak}": or_dash(numbers.peak_bytes(facts.peak), human_bytes),
            }
        )
    reasons = [f"{o.name}: {o.reason}" for o in facts.found if o.reason]
    tally = _tally(facts) if facts.judged else ""  # else it is the outcome
    prose = tuple(filter(None, (tally, facts.plan.ended, *reasons)))
    tables = (table_of(rows, left=2),)
    return Section(title="Settings", prose=prose, tables=tables, pictures=pictures)


def predicted(facts: Facts, pictures: tuple[Picture, ...]) -> Section:
    """The advisor's numbers next to the measured ones, and whether its order was right."""
    found = facts.found
    kept, peaks = [o.saved_per_layer for o in found], [o.peak_allocated for o in found]
    orders = order_lines({"peak allocated memory": peaks, "bytes kept per layer": kept})
    lines = list(dict.fromkeys([*judgement(found), *orders]))  # what is missing is said once
    lines += [
        *evidence.calibration_lines(facts),
        *(f"Note: {text}." for text in facts.plan.assumptions),
    ]
    quantities = [
        _quantity("kept per layer", found, kept, human_bytes),
        _quantity("peak allocated", found, peaks, human_bytes),
        _quantity(timed("step time", facts), found, [o.step_time for o in found], milliseconds),
    ]
    tables = tuple(known(quantities))
    sign = "Errors are (predicted - measured) / measured." if tables else "Nothing was predicted."
    return Section(
        title="Predicted and measured", prose=(sign, *lines), tables=tables, pictures=pictures
    )


def _quantity(
    words: str, found: tuple[SettingOutcome, ...], pairs: list[Pair], write: Callable[[float], str]
) -> Table | None:
    """One quantity of every setting; None where nobody predicted it."""
    if all(pair.predicted is None for pair in pairs):
        return None
    rows = [(o.name, *cells(p, write)) for o, p in zip(found, pairs, strict=True)]
    return Table(columns=(words, "predicted", "measured", "error"), rows=tuple(rows))


def timed(words: str, facts: Facts) -> str:
    """A column's head, marked where its numbers come from a CPU's time."""
    return f"{words} (CPU time)" if facts.on_cpu else words


def _one_step(times: Table | None, pictures: tuple[Picture, ...]) -> tuple[Section, ...]:
    if times is None:
        return (Section(title="One step", pictures=pictures),) if pictures else ()
    how = (
        "Times of one step after the timed ones, on one rank: on the GPU, and until the processor "
        "had queued the work. Where the processor is hardly ahead, the GPU waits for it."
    )
    return (Section(title="One step", prose=(how,), tables=(times,), pictures=pictures),)


def _status(outcome: SettingOutcome, facts: Facts) -> str:
    if outcome.setting.skip:
        return f"{outcome.status}: not run"
    results = facts.results_of(outcome.setting)
    measured = sum(one.status in MEASURED for one in results)
    more = f", {measured} of {len(results)} measured" if len(results) > 1 else ""
    tied = ", tied" if outcome.setting.trial.name in facts.plan.tied else ""
    return f"{outcome.status}{tied}{more}"


def _tally(facts: Facts) -> str:
    """``3 settings: 2 ok, 1 oom``."""
    counts = Counter(outcome.status for outcome in facts.found)
    words = ", ".join(f"{counts[status]} {status}" for status in TrialStatus if counts[status])
    return f"{counted(len(facts.found), 'setting')}: {words or 'nothing was run'}"
