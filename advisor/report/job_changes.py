"""In what the jobs of a ranking differ, field by field: as columns, and as KEY=VALUE."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.fields import join_key_values, spelled
from advisor.base.units import DASH
from advisor.job.job import Job
from advisor.job.layout import DEGREES, EVEN, SHORT_NAMES
from advisor.models.options import CpCommType
from advisor.plan.split import split_evenly
from advisor.request.origin import changes, value_of

_SHARDING: Final = "sharding"
_ALWAYS: Final = ("DP", "mbs")
_IN_COLUMNS: Final = (
    *(f"layout.{name}" for name in DEGREES),
    *("layout.sequence_parallel", "layout.cp_comm_type"),
    *("job.micro_batch_size", "layout.data_parallel_sharding"),
)


def untold(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that stand in no column of degrees."""
    return {path: value for path, value in values.items() if path not in _IN_COLUMNS}


class LayoutColumns(Struct, frozen=True):
    """The columns that tell the layouts of `jobs` apart, and what no column says of each job
    besides `usual`."""

    jobs: Sequence[Job]
    usual: Job

    @property
    def titles(self) -> tuple[str, ...]:
        """Those of degrees that some job uses, of DP and micro batch, and of the sharding where it
        is not the usual one in all; on one GPU the micro batch alone."""
        if self.usual.num_gpus == 1:
            return ("mbs",)
        cells = [layout_cells(job) for job in self.jobs]
        usual = layout_cells(self.usual)
        return tuple(
            title
            for title in usual
            if title in _ALWAYS or any(one[title] not in _plain(title, usual) for one in cells)
        )

    def cells(self, job: Job) -> list[str]:
        """One cell a title."""
        found = layout_cells(job)
        return [found[title] for title in self.titles]

    def words(self, job: Job) -> list[str]:
        """``TP 2+SP``, ``PP 4``: each title with its cell."""
        return [" ".join(pair) for pair in zip(self.titles, self.cells(job), strict=True)]

    def others(self, job: Job) -> dict[str, Any]:
        """Changes besides those of the usual job that stand in no column."""
        return options_apart(job, self.usual)


def _plain(title: str, usual: Mapping[str, str]) -> tuple[str, ...]:
    """Cells of a column that need not be shown where it has no others."""
    return (usual[title],) if title == _SHARDING else ("1", DASH)


def layout_cells(job: Job) -> dict[str, str]:
    """A job's degrees, micro batch and sharding by the titles of their columns: ``2+SP`` for TP,
    ``8 a2a`` for CP."""
    layout = job.layout
    sp = "+SP" if layout.sequence_parallel else ""
    ring = layout.context_parallel_size == 1 or layout.cp_comm_type is CpCommType.P2P
    cuts_experts = layout.expert_model_parallel_size > 1 or layout.expert_tensor_parallel_size
    return {
        "TP": f"{layout.tensor_model_parallel_size}{sp}",
        "CP": f"{layout.context_parallel_size}" + ("" if ring else f" {layout.cp_comm_type}"),
        "PP": str(layout.pipeline_model_parallel_size),
        "VPP": str(layout.virtual_pipeline_model_parallel_size),
        "EP": str(layout.expert_model_parallel_size),
        "ETP": str(layout.expert_tensor_degree) if cuts_experts else DASH,
        "DP": str(layout.data_parallel_size),
        "mbs": str(job.config.micro_batch_size),
        _SHARDING: spelled(layout.data_parallel_sharding),
    }


def apart(job: Job, other: Job) -> str:
    """``PP 2, VPP 8, micro batch 2``: what `job` has that `other` has not; empty where they are the
    same. DP is left out, which follows."""
    rest = join_key_values(options_apart(job, other))
    return ", ".join(filter(None, [*degrees_apart(job, other), rest]))


def options_apart(job: Job, other: Job) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value: of `apart`, what no column of a ranking says. Left out is what
    follows from the degrees: a split of layers from another PP or VPP, and overlaps that do
    nothing."""
    follows = EVEN if _chunks(job) != _chunks(other) and _splits_evenly(job) else ()
    idle = {f"layout.{name}" for name in (*follows, *job.layout.idle_overlaps)}
    return {path: value for path, value in untold(changes(job, other)).items() if path not in idle}


def degrees_apart(job: Job, other: Job) -> list[str]:
    """``PP 2``, ``VPP 8``, ``micro batch 2``: of `apart`, what the columns of a ranking say."""
    theirs = layout_cells(other)
    return [
        f"{_WORDS.get(title, title)} {cell}"
        for title, cell in layout_cells(job).items()
        if cell not in (theirs[title], DASH) and title != "DP"
    ]


_WORDS: Final = {"mbs": "micro batch"}


def change_words(job: Job, usual: Job, origin: Mapping[str, str]) -> str:
    """``the recipe's EP 8 to 32 and micro batch 1 to 2``: in what `job` is another one than the
    `usual`, and where each value that it changes came from, by `origin`."""
    lent: dict[str, list[str]] = {lender: [] for lender in ("", *_LENDERS.values())}
    for path, words in _each_change(job, usual):
        lent[_LENDERS.get(origin.get(path, "").partition(" ")[0], "")].append(words)
    return "; ".join(f"{lender}{all_of(words)}" for lender, words in lent.items() if words)


def _each_change(job: Job, usual: Job) -> Iterator[tuple[str, str]]:
    """``GROUP.FIELD``, and ``EP 8 to 32``."""
    ours, theirs = layout_cells(job), layout_cells(usual)
    follows = ("DP", _SHARDING) if job.num_gpus == 1 else ("DP",)
    for title, cell in ours.items():
        if cell != theirs[title] and title not in follows and DASH not in (cell, theirs[title]):
            path = _PATHS.get(title) or f"layout.{SHORT_NAMES[title]}"
            yield path, f"{_WORDS.get(title, title)} {theirs[title]} to {cell}"
    for path, value in options_apart(job, usual).items():
        before = spelled(value_of(usual, path))
        yield path, f"{path} {before or 'none'} to {spelled(value) or 'none'}"


_PATHS: Final = {"mbs": "job.micro_batch_size", _SHARDING: "layout.data_parallel_sharding"}


_LENDERS: Final = {"recipe": "the recipe's ", "default": "the default ", "assumed:": "the assumed "}
"""Whose a value was, by the first word of its origin; nothing is said of what a search chose."""


def all_of(words: Sequence[str]) -> str:
    """``PP 2, VPP 8 and micro batch 2``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _chunks(job: Job) -> tuple[int, int]:
    layout = job.layout
    return layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size


def _splits_evenly(job: Job) -> bool:
    """Whether the layers are split as evenly as can be."""
    plain = replace(job.layout, **EVEN)
    return job.layout == plain or any(
        job.layout == split_evenly(job.model, plain, as_text=as_text) for as_text in (True, False)
    )
