"""The explorer's page: what it knows of a grid, its job in words, jobs, settings and rows."""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from msgspec import Struct, field

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.base.distribution import installed_version
from advisor.base.errors import UserError
from advisor.base.fields import join_key_values
from advisor.base.plain_json import to_plain
from advisor.base.units import human_count
from advisor.explorer import step_numbers as numbers
from advisor.explorer.nearby import Grid, differs, grid, length_of
from advisor.frameworks.registry import label_of, parts_of
from advisor.job.job import Job
from advisor.job.microbatches import microbatches
from advisor.layers.parameters import parameter_count
from advisor.plan.recompute_plan import Setting
from advisor.report import header
from advisor.report import sample_block as blocks
from advisor.report.job_changes import layout_cells, options_apart
from advisor.report.plain_advice import plain_advice
from advisor.report.setting_flags import all_flags, all_job_flags, environment_words
from advisor.report.text import plain_lines
from advisor.report.wording import remedy_lines, verdict, way_out
from advisor.request.differences import HarnessLines
from advisor.request.request import Request
from advisor.search import answer_parts, evaluate, layout_search, measured_rows
from advisor.search.ranking import UNFIT, tier

GPUS: Final = "GPUs"
AXES: Final = ("TP", "CP", "PP", "VPP", "EP", "ETP", "mbs", "sharding")
"""Columns of `layout_cells` that the page has a control for, besides the sequence length."""
OPTIONS: Final = "options"
"""The column of what no other one says."""
_SAID: Final = (
    *("job.seq_length", "samples.token_budget"),
    *("tuning.rank", "rl.gpu_memory_utilization"),
)
"""Options that have a control of their own."""
_SPEC: Final = "SPEC"
"""Stands for the settings in a `harness run` line."""


def document(answer: Answer, grid: Grid, request: Request, request_line: str) -> dict[str, Any]:
    """Plain JSON: see the functions below, and assets/data.js, which reads it."""
    lines = HarnessLines(str(request.model), answer.recipe, request.config_dir)
    pages = _Page(answer, grid, lines, tuple(all_job_flags(grid.jobs[0][1][0])))
    jobs = [pages.job(job) for job, _ in grid.jobs]
    rows = [row for number in range(len(jobs)) for row in pages.rows(number)]  # numbers settings
    return {
        "version": installed_version(),
        "command": request_line,
        "unit": numbers.UNIT,
        "times": numbers.TIMES,
        "axes": [GPUS, *AXES, OPTIONS],
        **_subject(answer, grid.own),
        "frameworks": [label_of(name) for name in pages.frameworks],
        "jobs": numbers.columns(jobs),
        "settings": numbers.columns(pages.settings),
        "rows": numbers.columns(rows),
        "pool": pages.pool.values,
        "toss": pages.toss(),
        "typed": pages.typed(),
        "rejected": [
            [one.setting.spec, one.reason, one.fix, f"{one.rule}: {one.source}"]
            for one in answer.rejected
        ],
    }


def _subject(answer: Answer, job: Job) -> dict[str, Any]:
    best = answer.candidates[0].evaluation
    return {
        "model": job.model.name,
        "parameters": human_count(parameter_count(job.model).total),
        "gpus": job.num_gpus,
        "gpu": job.gpu.name,
        "precision": str(job.config.precision),
        "recipe": answer.recipe,
        "framework": header.framework_words(job),
        "card": numbers.units(job.gpu.memory_bytes),
        "budget": numbers.units(best.budget_bytes),
        "packs": job.config.samples.token_budget is not None,
        "samples": _samples(answer),
        "certainty": job.config.certainty,
        "verdict": f"{verdict(answer)} {way_out(answer)}".strip(),
        "basis": [
            ["Calibration", [header.calibration_words(answer.calibration)]],
            ["Measured runs", [" · ".join(header.measured_words(answer))]],
            ["Known error", [answer.calibration.known_error]],
            ["Assumed", [" · ".join(answer.assumptions)]],
            ["Recipe", [one.removeprefix("recipe ") for one in answer.recipe_differs]],
            ["Differs", [" · ".join(answer.differences)]],
            ["Proof", _proof(answer)],
        ],
        "remedies": remedy_lines(answer),
        "searched": answer.searched or answer.optimum is not None,
    }


def _proof(answer: Answer) -> list[str]:
    """What `--search optimum` has proven, of which space; nothing without it."""
    if answer.optimum is None:
        return []
    from advisor.report.optimum_block import optimum_block

    return plain_lines(optimum_block(answer.optimum, stopped=answer.stopped), _ONE_LINE)


_ONE_LINE: Final = 1000


def _samples(answer: Answer) -> list[list[Any]]:
    """Of the choice what the text page says of samples of several lengths: sizes of microbatches,
    the longest row until some steps, what is too long."""
    if (note := blocks.sample_note_of(answer)) is None:
        return []
    until = (to_plain(one) for one in note.until)
    return [[*blocks.sizes(note)], [*until], [*blocks.too_long(note)]]


class _Page(Struct, frozen=True):
    """Jobs, settings and rows as plain values, what they share in a pool. frameworks: whose
    flags are shown."""

    answer: Answer
    grid: Grid
    lines: HarnessLines
    frameworks: tuple[str, ...]
    pool: numbers.Pool = field(default_factory=numbers.Pool)
    settings: list[dict[str, Any]] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def job(self, job: Job) -> dict[str, Any]:
        """Degrees as the columns of a ranking say them; bytes that no setting changes, of every
        stage; the flags of all frameworks; the line that measures settings of it."""
        rows = next(rows for one, rows in self.grid.jobs if one is job)
        cells = layout_cells(job)
        first = rows[0]
        held = [stage.memory_bytes for stage in first.stages]
        tuning, rl = job.config.tuning, job.config.rl
        said = _SAID if tuning.has_adapter else (*_SAID, "tuning.")
        apart = options_apart(job, self.grid.own).items()
        options = {path: value for path, value in apart if not path.startswith(said)}
        return {
            GPUS: self.pool.number(str(job.num_gpus)),
            **{axis: self.pool.number(cells[axis]) for axis in AXES},
            OPTIONS: self.pool.number(join_key_values(options) or "the answer's"),
            "DP": job.layout.data_parallel_size,
            "seq": length_of(job.config),
            "rank": self.pool.number(str(tuning.rank) if tuning.has_adapter else "all weights"),
            "engine": self.pool.number(rl.shares_gpus and str(rl.gpu_memory_utilization)),
            "tokens": round(microbatches(job).tokens),
            "pp": job.layout.pipeline_model_parallel_size,
            "vpp": job.layout.virtual_pipeline_model_parallel_size,
            "microbatches": microbatches(job).mean.num_microbatches,
            "row": self.pool.number([*header.row_words(job.config)]),
            "runs": self.pool.number([header.tuning_words(job), *header.run_words(job)]),
            "layout": self.pool.number(header.layout_words(job.layout, job.config.optimizer)),
            "apart": self.pool.number(differs(job, self.grid.own)),
            "fixed": self.pool.number(
                [[*map(numbers.units, (one.weights, one.gradients, one.optimizer))] for one in held]
            ),
            "flags": self.pool.number(list(all_job_flags(first).values())),
            "unsaid": self.pool.number(
                [parts_of(one).spelling.omitted(job) for one in self.frameworks]
            ),
            "measure": self.pool.number(self._measuring_command(job, rows)),
            "schedule": numbers.schedule_numbers(self.pool, job),
        }

    def _measuring_command(self, job: Job, rows: Sequence[Evaluation]) -> list[str]:
        """``harness run …`` before and after its settings, and which options it sets otherwise;
        empty where no line makes the job, and of a job near the answer's none of which may fit."""
        if job is not self.grid.own and all(tier(row) == UNFIT for row in rows):
            return []
        try:
            line = self.lines.of(job, (_SPEC,))
            lost = join_key_values(answer_parts.lost_options(job))
        except UserError:
            return []
        before, _, after = line.partition(f"'recompute.settings=[{_SPEC}]'")
        return [before, after, lost]

    def toss(self) -> dict[str, Any] | None:
        """Job and setting of each of two rows that only a measurement tells apart, and why."""
        toss = self.answer.toss
        if toss is None:
            return None
        rows = [self._place(self.answer.candidates[rank - 1].evaluation) for rank in toss.ranks]
        return {"rows": rows, "why": toss.why}

    def typed(self) -> list[Any] | None:
        """Job and setting of the best row of the job as typed."""
        best = self.answer.chosen
        return self._place(best.evaluation) if best else None

    def _place(self, row: Evaluation) -> list[Any]:
        jobs = [job for job, _ in self.grid.jobs]
        return [jobs.index(row.job), row.setting.spec]

    def setting(self, setting: Setting) -> int:
        spec = setting.spec
        if spec not in self._numbers:
            self._numbers[spec] = len(self.settings)
            kept, plus, away = spec.partition("+offload")
            self.settings.append(
                {"spec": spec, "kind": kept.partition(":")[0], "offload": bool(plus + away)}
            )
        return self._numbers[spec]

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        job, evaluations = self.grid.jobs[number]
        evaluator = evaluate.Evaluator(job, evaluations[0].calibration)
        for evaluation in evaluations:
            yield {
                **self._figures(number, evaluation),
                **numbers.step_numbers(self.pool, evaluation, evaluator),
                "layers": numbers.layer_numbers(self.pool, evaluation, evaluator),
            }

    def _figures(self, job: int, evaluation: Evaluation) -> dict[str, Any]:
        """Its figures, with those of every stage."""
        clear, sigma, most = numbers.clearance(evaluation)
        stages, seconds = evaluation.stages, evaluation.step_time_seconds
        pool, remarks = self.pool, parts_of(evaluation.job.config.framework).settings
        return {
            "job": job,
            "setting": self.setting(evaluation.setting),
            "reserved": numbers.units(evaluation.peak_reserved_bytes),
            "simulated": int(evaluation.requests is not None),
            "peak_stage": evaluation.peak.stage,
            "clear": clear,
            "sigma": sigma,
            "most": most,
            "seconds": numbers.times(evaluation),
            "overhead": numbers.micros(evaluation.recompute_overhead),
            "below": numbers.micros(1 - evaluation.step_time_low_seconds / seconds),
            "error": numbers.micros(evaluation.step_time_high_seconds / seconds - 1),
            "flops": round(evaluation.tflops_per_gpu * 1e6),
            "stages": [number for stage in stages for number in numbers.stage_numbers(stage)],
            "phases": pool.number([pool.number(stage.peak_phase) for stage in stages]),
            "cycle": pool.number([numbers.phase_numbers(phase) for phase in evaluation.phases]),
            "flags": pool.number(list(all_flags(evaluation).values())),
            "environment": pool.number(environment_words(evaluation)),
            "notes": pool.number(list(remarks.notes(evaluation.setting, evaluation.job))),
            "measured": pool.number(measured_rows.measured_note(evaluation)),
        }


_HERE: Final = Path(__file__).parent
_SCRIPTS: Final = (
    "data words state parts controls table pareto near memory phases time flags step layer app"
)


def explorer_page(
    answer: Answer, request: Request, request_line: str, watch: layout_search.Watch | None = None
) -> str:
    """HTML of every row of `answer` to `request`, and of jobs near it; request_line: the command
    that asked. UserError where the answer has no row."""
    if not answer.candidates:
        raise UserError("--format", "html", "has nothing to show: every setting is rejected")
    data = numbers.packed(document(answer, grid(answer, request, watch), request, request_line))
    job = answer.job
    static = _static(answer)
    styles = list(dict.fromkeys(re.findall(_STYLE, static)))
    page = Template(_asset("page.html")).substitute(
        title=escape(f"{job.model.name} on {job.num_gpus} x {job.gpu.name}"),
        style=_asset("page.css") + "".join(f".s{n} {{{one}}}\n" for n, one in enumerate(styles)),
        static=re.sub(_STYLE, lambda found: f'class="s{styles.index(found[1])}"', static),
        data=data,
        vendor=(_HERE / "vendor/htm-preact.js").read_text(encoding="utf-8"),
        script="".join(_asset(f"{name}.js") for name in _SCRIPTS.split()),
    )
    return page.replace("@policy@", _policy(page), 1)


_STYLE: Final = r'style="([^"]*)"'
"""A style that is no rule: the policy refuses it."""


def _policy(page: str) -> str:
    """A browser shall load nothing, and take no scripts and styles but these, by their hashes."""
    hashes: dict[str, list[str]] = {}
    for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        hashes.setdefault(tag, []).append(f"'sha256-{digest}'")
    own = (f"{tag}-src {' '.join(found)}" for tag, found in hashes.items())
    return "; ".join(["default-src 'none'", *own])


def _static(answer: Answer) -> str:
    """The table of a notebook, with all flags of its choice: layout and setting."""
    advice, best = plain_advice(answer, top=10), answer.leading
    assert best is not None
    evaluation = best.evaluation
    layout, environment = all_job_flags(evaluation), environment_words(evaluation)
    flags = {}
    for name, setting in all_flags(evaluation).items():
        omitted = parts_of(name).spelling.omitted(evaluation.job)
        label = " · ".join(filter(None, [label_of(name), omitted]))
        flags[label] = " ".join(filter(None, [layout[name], setting]))
    if environment:
        flags["Environment"] = f"export {environment}"
    return advice.html_with(flags)


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")
