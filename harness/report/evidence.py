"""What was measured beyond the step time, how far to trust it, and where it comes from."""

from collections.abc import Iterator

from advisor.base.configuration import ConfigGroup, load_config
from advisor.base.errors import UserError
from advisor.base.fields import read_record
from advisor.base.units import DASH, human_bytes, milliseconds
from advisor.hardware.calibration import Calibration
from harness.base.collections import known
from harness.execution.runner import MEASURED
from harness.judge.metrics import PEAKS
from harness.judge.predicted import or_dash
from harness.report.document import Picture, Section, Table, table_of
from harness.report.facts import Facts, Numbers, numbers_of, peaks
from harness.trial.result import TrialResult
from harness.trial.trial import PlannedSetting


def memory(facts: Facts, pictures: tuple[Picture, ...]) -> Section:
    """The four peaks of every setting: over all ranks, and those of each stage."""
    table = Table(
        columns=("setting", "ranks", "allocated", "active", "reserved", "used (NVML)"),
        rows=tuple(row for setting in facts.plan.settings for row in _peaks(facts, setting)),
        left=2,
    )
    how = (
        "On the CPU, allocated bytes are counted tensor by tensor. There is no caching allocator, "
        "so no active or reserved bytes, and no NVML."
        if facts.on_cpu
        else "Allocated, active and reserved are peaks of torch's caching allocator; NVML's number "
        "is the driver's, with CUDA context and NCCL buffers."
    )
    return Section(title="Memory", prose=(how,), tables=(table,), pictures=pictures)


def _peaks(facts: Facts, setting: PlannedSetting) -> Iterator[tuple[str, ...]]:
    name = facts.name_of(setting)
    ranks = [peak for one in facts.results_of(setting) for peak in one.memory]
    count = len({peak.rank for peak in ranks})
    yield name, f"fullest of {count}" if count else DASH, *_bytes(peaks(ranks))
    stages = sorted({peak.stage for peak in ranks})
    for stage in stages if len(stages) > 1 else ():
        own = [peak for peak in ranks if peak.stage == stage]
        yield name, f"pipeline stage {stage}", *_bytes(peaks(own))


def _bytes(numbers: Numbers) -> tuple[str, ...]:
    return tuple(or_dash(getattr(numbers, name), human_bytes) for name in PEAKS)


def flops(facts: Facts) -> Section:
    """Model FLOPs and hardware FLOPs, never one number, and the peak they are held against."""
    unit = "TFLOP/s (CPU time)" if facts.on_cpu else "TFLOP/s/GPU"
    rows = [
        {
            "setting": facts.name_of(setting),
            f"model {unit}": or_dash(one.model_tflops_per_gpu, "{:.4g}".format),
            f"hardware {unit}": or_dash(one.hardware_tflops_per_gpu, "{:.4g}".format),
            "MFU": or_dash(one.mfu, _share),
            "HFU": or_dash(one.hfu, _share),
        }
        for setting in facts.plan.settings
        for one in (facts.numbers(setting),)
    ]
    return Section(
        title="FLOPs",
        prose=(
            "Model FLOPs follow Megatron's convention and count no recompute; hardware FLOPs "
            "count it.",
            _peak(facts),
        ),
        tables=(table_of(rows),),
    )


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


def _peak(facts: Facts) -> str:
    precision = facts.plan.settings[0].trial.workload.precision
    if facts.gpu is None:
        return "MFU and HFU need the peak of a GPU that is described in configs/hardware."
    peak = facts.gpu.peak_flops(precision) / 1e12
    return (
        f"MFU and HFU are relative to {peak:.1f} TFLOP/s: the dense peak of {facts.gpu.name} at "
        f"{precision}, from its datasheet (configs/hardware/{facts.gpu.name}.yaml)."
    )


def phases(facts: Facts) -> Table | None:
    """Where the time of a step went, and how far the processor was ahead; None without a GPU."""
    rows = [
        {
            "setting": facts.name_of(setting),
            "phase": str(phase.phase),
            "stretches": str(phase.stretches),
            "GPU": milliseconds(phase.seconds),
            "processor": milliseconds(phase.host_seconds),
            "processor ahead, least": or_dash(phase.ahead_seconds, milliseconds),
        }
        for setting in facts.plan.settings
        for phase in next(filter(None, (one.phases for one in facts.results_of(setting))), ())
    ]
    return table_of(rows, left=2) if rows else None


def trust(facts: Facts) -> Section:
    """Why a trial's number does, or does not, deserve trust."""
    rows, doubts, names = [], [], facts.names
    for name, result in facts.results.items():
        times, spread = result.times, numbers_of(result, None).step_spread
        minor = f"{len(result.concerns)} minor" if result.concerns else "none"
        rows.append(
            {
                "setting": names[name],
                "trial": name,
                "status": str(result.status),
                "steps": str(len(times.seconds)) if times else DASH,
                "warm-up": str(len(times.warmup_seconds)) if times else DASH,
                "IQR / median": or_dash(spread, _share),
                "clock": _clock(result),
                "concerns": ", ".join(one.name for one in result.fatal) or minor,
            }
        )
        doubts += [f"{name}  {'FATAL  ' if one.fatal else ''}{one}" for one in result.concerns]
    repeats = max((len(facts.results_of(setting)) for setting in facts.plan.settings), default=0)
    few = "; fewer than five make intervals wide" if repeats < 5 else ""
    prose = (f"Processes per setting: {repeats}{few}. Steps of one process are correlated.",)
    return Section(
        title="Trust", prose=prose, tables=(table_of(rows, left=3),), lines=tuple(doubts)
    )


def _clock(result: TrialResult) -> str:
    cpu = " (CPU time)" if result.trial["workload"]["device"] == "cpu" else ""
    return f"{result.times.clock}{cpu}" if result.times else DASH


def failures(facts: Facts) -> tuple[Section, ...]:
    """Last words of every trial that was not measured."""
    lines, names = [], facts.names
    for name, result in facts.results.items():
        if result.status not in MEASURED and result.evidence:
            words = " ".join(result.evidence.message.split())
            lines += [f"{names[name]}  {name}  {result.status}: {words}"]
            lines += [f"    {line}" for line in result.evidence.log_tail]
    return (Section(title="Last log lines", lines=tuple(lines), folded=True),) if lines else ()


def environment(facts: Facts) -> Section:
    """Workload and machine, key by key."""
    workload = facts.plan.settings[0].trial.workload
    model, layout = workload.model, workload.layout
    degrees = (
        f"TP {layout.tensor_model_parallel_size} PP {layout.pipeline_model_parallel_size} "
        f"VPP {layout.virtual_pipeline_model_parallel_size} CP {layout.context_parallel_size} "
        f"DP {layout.data_parallel_size}"
    )
    shape = (
        f"{model.name}: {model.num_layers} layers, hidden {model.hidden_size}, "
        f"ffn {model.ffn_hidden_size}, {model.num_attention_heads} heads, "
        f"{model.num_query_groups} query groups, vocabulary {model.vocab_size}"
    )
    recorded = facts.place.environment if facts.place else {}
    rows = [("model", shape), ("layout", degrees)]
    rows += [("set for every trial", text) for text in facts.plan.settings[0].trial.variables]
    rows += [(key, or_dash(value, str)) for key, value in sorted(recorded.items())]
    table = Table(columns=("what", "value"), rows=tuple(rows), left=2)
    return Section(title="Workload and machine", tables=(table,), folded=True)


def calibration(facts: Facts) -> Section:
    """Where the predicted times come from, with the rows that they were fitted on."""
    there, errors = known(calibrations(facts).values()), []
    for one in there:
        parts = {"fitted rows": one.fit_error, "rows left out of the fit": one.left_out_error}
        errors += [f"{one.name}: error on {k}: {error}" for k, error in parts.items() if error]
    return Section(
        title="Calibration of the predictions",
        prose=calibration_lines(facts) or ("Nothing was predicted.",),
        lines=(*errors, *(row for one in there for row in one.fitted_on)),
        folded=True,
    )


def calibrations(facts: Facts) -> dict[str, Calibration | None]:
    """Calibrations that the predictions rest on, by name; None where there is no such file."""
    predictions = known(setting.trial.prediction for setting in facts.plan.settings)
    return {one.calibration: find_calibration(one.calibration) for one in predictions}


def calibration_lines(facts: Facts) -> tuple[str, ...]:
    """Name, provenance and band of each in one sentence."""
    lacks = {"none": "no time was predicted"}
    return tuple(
        f"Calibration {one.name}: {one.provenance}, {one.summary()}."
        if one
        else f"Calibration {name}: {lacks.get(name, 'its file is missing')}."
        for name, one in calibrations(facts).items()
    )


def find_calibration(name: str) -> Calibration | None:
    """The calibration of that name; None where there is no such file."""
    try:
        document = load_config(ConfigGroup.CALIBRATION, name, None, "calibration")
        return read_record(Calibration, document.values, document.path)
    except UserError:
        return None


def commands(facts: Facts) -> Section:
    """What runs each trial again, alone."""
    settings = facts.plan.settings
    pairs = ((f"# {facts.name_of(one)}", facts.command(one.trial)) for one in settings)
    prose = ("Each command runs every repeat of its setting into a new folder:",)
    lines = tuple(line for pair in pairs for line in pair)
    return Section(title="Run a trial again", prose=prose, lines=lines, folded=True)
