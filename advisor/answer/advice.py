"""An answer as plain data: what `advisor.advise` returns and `--format json` prints.

These types are the one description of it: the JSON text, its schema, CSV, DataFrame and the view in
a notebook are made of them. Sizes are bytes, times seconds, rates per second. Keys may be added;
while SCHEMA_VERSION is 1 none is renamed or removed.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from advisor.answer import answer, evaluation, notebook
from advisor.answer.phases import Phase
from advisor.base.errors import UserError, require
from advisor.base.fields import join_key_values
from advisor.base.plain_json import from_text, to_plain, to_text
from advisor.base.units import GIB, amount, in_gib, percent, rate_words, signed_percent
from advisor.hardware.gpu import GpuFields
from advisor.job.job import JobConfig
from advisor.job.layout import SHORT_NAMES, ParallelLayout
from advisor.models.model_fields import ModelFields

SCHEMA_VERSION: Final = 1
_SHOWN: Final = 10
_DEGREES: Final = {short: name for short, name in SHORT_NAMES.items() if short != "ETP"}
_COLUMNS: Final = tuple(
    name
    for name in ParallelLayout.__struct_fields__
    if name in (*SHORT_NAMES.values(), "sequence_parallel", "cp_comm_type")
)
"""Fields of the layout that are columns of a table."""
_MEMORY: Final = (
    *("fits", "pareto", "dominated_by", "same_as", "fit_probability", "budget_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "replayed", "simulated", "peak_stage"),
)
_RATES: Final = (
    *("step_time_seconds", "step_time_low_seconds", "step_time_high_seconds"),
    *("tokens_per_second", "tokens_per_second_per_gpu", "gpu_hours_per_trillion_tokens"),
    *("price_per_trillion_tokens", "tflops_per_gpu", "mfu", "hfu", "recompute_overhead"),
)


class Recompute(Struct, frozen=True, kw_only=True):
    """A recompute setting: `spec` is its spelling for `--recompute`; the other fields are its parts
    in the words of Megatron or of the PyTorch stacks, null or empty if the framework has none.

    effective_modules: those that Megatron recomputes after its own promotion. num_layers is
    Megatron's recompute_num_layers, or the number after selective and uniform elsewhere.
    """

    spec: str
    granularity: str | None = None
    modules: tuple[str, ...] | None = None
    method: str | None = None
    num_layers: int | None = None
    distribute_saved_activations: bool = False
    offload_modules: tuple[str, ...] = ()
    offload_fraction: float = 1.0
    cpu_offloading_num_layers: int = 0
    segments: int | None = None
    policy: str | None = None
    budget: float | None = None
    use_reentrant: bool | None = None
    options: tuple[str, ...] = ()
    effective_modules: tuple[str, ...] = ()


class AdvisedModel(ModelFields, frozen=True, kw_only=True):
    """The model's fields, its parameters, and those that one token goes through."""

    num_parameters: int
    num_active_parameters: int


class AdvisedGpus(GpuFields, frozen=True, kw_only=True):
    """How many GPUs, of which type, and what its datasheet says: peaks are dense FLOP/s, bandwidths
    bytes/s per GPU in one direction."""

    count: int
    type: str


class AdvisedJob(JobConfig, frozen=True, kw_only=True):
    """What was asked, with everything looked up: model, layout, GPUs, batch and run-time options.

    model_flops_per_step: of all ranks, without replays; null where nothing could be evaluated.
    price_per_gpu_hour: as it was given, in whatever currency.
    """

    model: AdvisedModel
    layout: ParallelLayout
    gpus: AdvisedGpus
    model_flops_per_step: float | None = None
    price_per_gpu_hour: float | None = None


class RecipeNote(Struct, frozen=True, kw_only=True):
    """The published recipe that the job builds on, and a line for each value in which the recipe
    is for another job; empty without a recipe."""

    name: str = ""
    differs: tuple[str, ...] = ()


class Candidate(Struct, frozen=True, kw_only=True):
    """One recompute setting on one layout, with predicted memory and time.

    Attributes:
        rank: place in the ranking; 1 is the best.
        changes: fields in which the row's job differs from that of the usual answer to the request
            (or from the first row's), ``GROUP.FIELD`` -> value.
        fits: whether the probability that no rank runs out of memory is at least 90 %.
        pareto: whether no other row needs less of memory or time and no more of the other.
        dominated_by: rank of a row that is no larger and no slower.
        same_as: rank of the first row with the same peak (to 0.1 GiB) and step time (to 0.05 %).
        folded: whether a page hides the row, because it is dominated or the same as another.
        preset: whether the job's recipe ships with this setting.
        note: remarks on the row.
        budget_bytes: memory that a rank may reserve.
        peak_allocated_bytes: peak of the worst rank; compares with
            torch.cuda.max_memory_allocated. Where routing is free, 9 of 10 runs stay within it.
        peak_reserved_bytes: peak reserved memory of the worst rank.
        simulated: whether the reserved peak comes from a simulation of torch's allocator; otherwise
            what allocators usually leave unused is added.
        replayed: the old name of simulated, until schema_version 2.
        stages: memory of a rank of each pipeline stage; in the update where there are phases.
        phases: of a cycle of reinforcement learning or preference tuning, in order: its peak is
            that of the highest, and it is as likely to fit as the least likely. Empty where a step
            is all.
        host_memory_bytes: of host memory, what a rank needs for what is offloaded and what waits.
        saved_bytes_per_layer: bytes that a layer of each kind keeps of one microbatch.
        step_time_low_seconds, step_time_high_seconds: the band of the step time.
        recompute_overhead: step time over that of the same job without recompute, minus 1.
        tflops_per_gpu, mfu: without replayed FLOPs (Megatron's convention).
        hfu: with replayed FLOPs.
        gpu_hours_per_trillion_tokens: hours of all GPUs for 10**12 tokens, of steps only.
        price_per_trillion_tokens: these hours times the price of a GPU-hour; null without one.
        basis: what the figures rest on.
        measured: what a run of this setting gave, if --calibration names one; the other figures
            stay predicted.
        flags: flags to paste, by framework.
        job_flags: flags of the job that stand before them, if the row's job differs from the first
            row's (whose flags are Advice.job_flags).
        environment: ``NAME=VALUE`` of the variables without which the flags of the job's own
            framework are refused or mean less, with blanks between them.
    """

    rank: int
    recompute: Recompute
    layout: ParallelLayout
    micro_batch_size: int
    changes: dict[str, Any] = field(default_factory=dict)
    fits: bool
    pareto: bool
    dominated_by: int | None = None
    same_as: int | None = None
    folded: bool = False
    preset: bool = False
    note: str = ""
    fit_probability: float
    budget_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    replayed: bool
    simulated: bool = False
    peak_stage: int
    stages: tuple[evaluation.StageMemory, ...]
    phases: tuple[Phase, ...] = ()
    host_memory_bytes: int = 0
    saved_bytes_per_layer: dict[str, int | None]
    time_seconds: evaluation.TimeBreakdown
    step_time_seconds: float
    step_time_low_seconds: float
    step_time_high_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    gpu_hours_per_trillion_tokens: float
    price_per_trillion_tokens: float | None = None
    tflops_per_gpu: float
    mfu: float
    hfu: float
    recompute_overhead: float
    verification: answer.Verification | None = None
    basis: answer.Basis = answer.Basis.SHIPPED
    measured: answer.Measured | None = None
    flags: dict[str, str]
    job_flags: dict[str, str] = field(default_factory=dict)
    environment: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "simulated", self.replayed)  # an old answer has the old name alone

    @property
    def peak(self) -> evaluation.StageMemory:
        """The stage whose ranks reserve most."""
        return next(stage for stage in self.stages if stage.stage == self.peak_stage)


class FastestFound(Candidate, frozen=True, kw_only=True):
    """The fastest row near the job as typed: `changes` and `job_flags` are those of its job.

    gain: share of the step time that it saves against the fastest row that fits as typed; null
    where nothing fits as typed. rests_on: what of it few published runs show, in words; without:
    the best row that does without that.
    """

    gain: float | None = None
    rests_on: tuple[str, ...] = ()
    without: Candidate | None = None


class RejectedSetting(Struct, frozen=True, kw_only=True):
    """A setting that the framework refuses or that has no effect: the rule, the reason, what to do,
    and the source."""

    recompute: Recompute
    rule: str
    reason: str
    fix: str
    source: str


class MemoryShare(answer.MemoryLine, frozen=True, kw_only=True):
    """Bytes of one named tensor or term on the worst rank: `count` copies of `unit_bytes` each;
    `shape` is empty for terms that are no tensor."""

    num_bytes: int


class Explanation(Struct, frozen=True, kw_only=True):
    """Where each byte of the worst rank and each second of a step goes, of one candidate (rank 0:
    the fastest found); the memory sums to its peak_reserved_bytes, the time to its
    step_time_seconds."""

    rank: int
    memory: tuple[MemoryShare, ...]
    time: tuple[answer.TimeLine, ...]


class ReadOption(Struct, frozen=True, kw_only=True):
    """An option of a file that was read, as it is written there, and its line."""

    option: str
    value: str
    file: str
    line: int


class UnknownOption(ReadOption, frozen=True, kw_only=True):
    """One whose value only a run knows; `option` is empty where the text may stand for several.

    key: the KEY of KEY=VALUE that gives it, ``--recompute``, or empty where there is none.
    assumed: the value that the answer is for; null where that is the framework's default.
    """

    key: str = ""
    assumed: str | None = None


class ReadFile(Struct, frozen=True, kw_only=True):
    """The file of ``--from``: its setting in the spelling of ``--recompute`` (null if it states
    none) with the options that state it; options that the prediction does not use; options whose
    value is not known; what the framework refuses."""

    file: str
    line: int
    recompute: str | None = None
    recompute_options: tuple[ReadOption, ...] = ()
    not_taken: tuple[ReadOption, ...] = ()
    not_known: tuple[UnknownOption, ...] = ()
    refused: tuple[str, ...] = ()


class Advice(Struct, frozen=True, kw_only=True):
    """The answer to one request: every legal setting of the job as typed, best first, and the
    fastest that is found near it.

    Attributes:
        fits: whether `best` does.
        job: the job with every value looked up.
        assumptions: values that the advisor chose itself.
        evaluated: number of settings that were evaluated.
        candidates: the ranking of the job as typed, best first.
        fastest_found: where a job near it is faster, or fits where it does not; null elsewhere.
        search: how far was searched, if at all.
        rejected: settings that the framework refuses, with the rule and what to do.
        remedies: other changes that help where nothing fits.
        verdict: the best row and why, in a sentence or two.
        job_flags: flags of the first candidate's job, by framework: layout, batch, precision, CUDA
            graphs, dispatcher, overlap and loss. They stand before the candidate's `flags`.
        origin: where each value of the job comes from, ``GROUP.FIELD`` -> ``given``, ``recipe
            NAME``, ``default of FRAMEWORK RELEASE``, ``assumed: WHY`` or ``searched``.
        differences: fields in which the job of an 8- or 4-bit recipe differs from the job of the
            16-bit recipe, beyond the precision.
        toss: two rows to measure before one is chosen, if predictions cannot separate them.
        explain: bytes and seconds of the row that was asked for.
        read_from: the file of ``--from``.
        optimum: the proof of ``--search optimum``.
        stopped: whether the search was stopped; its rows are then the best found so far.
        samples: microbatches of `best`, where samples are of several lengths or tokens budgeted.
    """

    schema_version: int = SCHEMA_VERSION
    fits: bool
    job: AdvisedJob
    assumptions: tuple[str, ...]
    evaluated: int
    calibration: answer.CalibrationNote
    candidates: tuple[Candidate, ...]
    rejected: tuple[RejectedSetting, ...]
    remedies: tuple[answer.Remedy, ...]
    verdict: str = ""
    job_flags: dict[str, str] = field(default_factory=dict)
    recipe: RecipeNote = RecipeNote()
    origin: dict[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    toss: answer.Toss | None = None
    explain: Explanation | None = None
    read_from: ReadFile | None = None
    optimum: answer.Optimum | None = None
    stopped: bool = False
    fastest_found: FastestFound | None = None
    search: answer.SearchNote | None = None
    samples: answer.SampleNote | None = None

    @property
    def best(self) -> Candidate | None:
        """What the verdict names: the fastest found, else the best as typed."""
        return self.fastest_found or self.as_typed

    @property
    def as_typed(self) -> Candidate | None:
        """The best candidate of the job as typed that fits, else the best one; None where nothing
        was evaluated."""
        first = self.candidates[0] if self.candidates else None
        return next((candidate for candidate in self.candidates if candidate.fits), first)

    @property
    def front(self) -> tuple[Candidate, ...]:
        """The candidates on the Pareto front of memory and time, in the order of their ranks."""
        return tuple(candidate for candidate in self.candidates if candidate.pareto)

    def to_json(self) -> str:
        """What `advise --format json` prints: strict JSON, as `advisor.json_schema` describes."""
        return to_text(self)

    @classmethod
    def from_json(cls, text: str) -> "Advice":
        """The advice that `to_json` wrote; keys of later releases are ignored. UserError if
        the text is something else."""
        advice = from_text(cls, text, "advice")
        version = advice.schema_version
        if version != SCHEMA_VERSION:
            raise UserError("advice: schema_version", version, f"must be {SCHEMA_VERSION}")
        return advice

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per candidate, in bytes and seconds: the columns of `--format csv`."""
        return [_row(self.job, candidate) for candidate in self.candidates]

    def to_dataframe(self) -> Any:
        """`rows` as a pandas.DataFrame; UserError if pandas is not installed."""
        return frame(self.rows())

    def table(self) -> Any:
        """A pandas.DataFrame to read and to plot, one row per candidate, best first: sizes in GiB,
        times in seconds. UserError if pandas is not installed; `rows` needs none."""
        memory = ("fits", "fit_probability", "pareto", "budget_bytes", "peak_reserved_bytes")
        kept = ("rank", "recompute", *memory, "peak_allocated_bytes", "peak_stage", *_RATES, "note")
        rows = [{name: row[name] for name in kept} for row in self.rows()]
        layouts = (_layout(one, self.candidates) for one in self.candidates)
        return frame(
            [in_gib({"rank": 0, "layout": x} | y) for x, y in zip(layouts, rows, strict=True)]
        )

    def stages_table(self, rank: int = 0) -> Any:
        """A pandas.DataFrame of the memory of one candidate, one row per pipeline stage, in GiB:
        of the one with this rank, 0 is `best`. UserError if there is no such candidate, or pandas
        is not installed."""
        ranked = {0: self.best, **{one.rank: one for one in self.candidates}}
        if (chosen := ranked.get(rank)) is None:
            raise UserError("rank", rank, "must be 0, or the rank of a candidate")
        return frame(list(map(_stage, chosen.stages)))

    def _repr_html_(self) -> str:
        """How a notebook shows it: the choice, the best candidates, and the flags to paste."""
        return self.html_with(_all_flags(self.best) if self.best else {})

    def html_with(self, flags: dict[str, str]) -> str:
        """The same with other `flags` by label."""
        best = self.best
        shown = [candidate for candidate in self.candidates if not candidate.folded][:_SHOWN]
        more = len(self.candidates) - len(shown)
        layouts = any(candidate.changes != shown[0].changes for candidate in shown)
        job, gpus = self.job, self.job.gpus
        notes = []
        if best and best.fits:
            hours = best.gpu_hours_per_trillion_tokens
            notes.append(rate_words(best.tokens_per_second, hours, job.price_per_gpu_hour))
        notes += [f"Assumed: {text}" for text in self.assumptions]
        notes += [f"Differs from the 16-bit recipe: {text}" for text in self.differences]
        if self.calibration.known_error:
            notes.append(f"Known error: {self.calibration.known_error}")
        if not all(candidate.simulated for candidate in shown):
            notes.append(
                "~ is an estimate; peaks without ~ come from a simulation of torch's allocator"
            )
        notes += [f"Would help: {_remedy(remedy)}" for remedy in self.remedies]
        return notebook.notebook_html(
            title=f"{job.model.name} on {gpus.count} x {gpus.type}, sequence {job.seq_length}, "
            f"{job.precision}",
            verdict=self.verdict,
            table=notebook.NotebookTable(
                titles=tuple(_cells(self, shown[0], layouts)) if shown else (),
                rows=tuple(tuple(_cells(self, one, layouts).values()) for one in shown),
                strong=tuple(one is best and one.fits for one in shown),
                faint=tuple(not one.fits for one in shown),
                below=f"and {more} more" if more > 0 else "",
            ),
            flags=flags,
            notes=notes,
        )


def _row(job: AdvisedJob, candidate: Candidate) -> dict[str, Any]:
    """Names as in the JSON; parts of memory and time with their unit after."""
    row: dict[str, Any] = {
        "rank": candidate.rank,
        "model": job.model.name,
        "gpu": job.gpus.type,
        "num_gpus": job.gpus.count,
        **{name: getattr(candidate.layout, name) for name in _COLUMNS},
        "micro_batch_size": candidate.micro_batch_size,
        "changes": join_key_values(candidate.changes),
        "recompute": candidate.recompute.spec,
        **{name: getattr(candidate, name) for name in _MEMORY},
    }
    memory, times = to_plain(candidate.peak.memory_bytes), to_plain(candidate.time_seconds)
    row |= {f"{name}_bytes": size for name, size in memory.items()}
    row |= {name: getattr(candidate, name) for name in _RATES}
    row |= {f"{name}_seconds": seconds for name, seconds in times.items()}
    row |= {f"{name}_flags": words for name, words in candidate.flags.items()}
    return row | {"note": candidate.note}


def frame(rows: list[dict[str, Any]]) -> Any:
    """A pandas.DataFrame; UserError if pandas is not installed."""
    return require("pandas", "a DataFrame", "report").DataFrame(rows)


def _stage(stage: evaluation.StageMemory) -> dict[str, Any]:
    row = to_plain(stage)
    return in_gib(row | {f"{name}_bytes": size for name, size in row.pop("memory_bytes").items()})


def _all_flags(best: Candidate) -> dict[str, str]:
    """Those of its job, where that is another one, and of its setting."""
    flags = best.flags.items()
    return {name: f"{best.job_flags.get(name, '')} {words}".strip() for name, words in flags}


def _cells(advice: Advice, candidate: Candidate, layouts: bool) -> dict[str, str]:
    """A row of the notebook's table; with the layout where candidates have several."""
    cells = {"": str(candidate.rank)}
    if layouts:
        cells["layout"] = _layout(candidate, advice.candidates)
    return cells | {
        "recompute": candidate.recompute.spec + " (preset)" * candidate.preset,
        "peak GiB": "~" * (not candidate.simulated) + f"{candidate.peak_reserved_bytes / GIB:.1f}",
        "budget GiB": f"{candidate.budget_bytes / GIB:.1f}",
        "step s": f"{candidate.step_time_seconds:.3f}",
        "tokens/s": amount(candidate.tokens_per_second),
        "TFLOP/s/GPU": f"{candidate.tflops_per_gpu:.0f}",
        "overhead": signed_percent(candidate.recompute_overhead),
        "fits": percent(candidate.fit_probability),
        "note": candidate.note,
    }


def _layout(candidate: Candidate, others: Sequence[Candidate]) -> str:
    """``TP 4 PP 2 DP 4 mbs 1``: the degrees that some candidate has above 1, and what else it
    changes."""
    words = [
        f"{short} {getattr(candidate.layout, name)}"
        for short, name in _DEGREES.items()
        if any(getattr(other.layout, name) > 1 for other in others)
    ]
    said = {f"layout.{name}" for name in (*_DEGREES.values(), "sequence_parallel")}
    said.add("job.micro_batch_size")
    rest = {path: value for path, value in candidate.changes.items() if path not in said}
    words += [f"mbs {candidate.micro_batch_size}", join_key_values(rest)]
    return " ".join(filter(None, words))


def _remedy(remedy: answer.Remedy) -> str:
    sign = "-" if remedy.effect_bytes <= 0 else "+"
    slower = f"{remedy.effect_seconds * 1e3:+.0f} ms per step"
    return f"{remedy.change}: {sign}{abs(remedy.effect_bytes) / GIB:.1f} GiB, {slower}"
