"""Constants of communication, fitted on published times of collectives and dispatches.

`python -m research.kernels.network` prints them with their errors. Rows are those of
results/published/kernels: times of NCCL alone, no step of any model.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import log

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.documents import read_csv
from advisor.base.units import significant
from advisor.hardware.calibration import Calibration, Provenance
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.layers.operators import CollectiveKind
from advisor.models.options import FlexBackend, TokenDispatcher
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.time.communication import collective_seconds, waiting_share
from advisor.time.rank_links import (
    Routing,
    all_to_all_link,
    flex_dispatcher,
    link,
    ranks_of_a_node,
    reached,
)
from research.kernels.least_squares import Constant, Errors, Fit, fitted, splits
from research.rows.row import PUBLISHED

TABLES = PUBLISHED / "kernels"
FAMILIES = {"A100": "a100", "H100": "h100", "H200": "h100", "B200": "b200"}
FAMILIES |= {"GB200": "b200", "GB300": "b200"}
"""Calibration of each GPU: parts of one generation share it."""

SHARED = {
    "internode_efficiency": 0.85,
    "collective_seconds": 1.5e-5,
    "hop_seconds": 1e-6,
    "ring_ramp": 0.5,
    "nvls_efficiency": 0.70,
    "all_to_all_efficiency": 0.85,
    "dispatch_seconds": 8e-5,
    "deepep_sm_bytes_per_second": 2.1e10,
}
"""Constants of all GPUs, with where the fit begins."""
OF_FAMILY = {"nvlink_efficiency": 0.78}
"""Constants of one generation."""
_KINDS = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "all-gather": CollectiveKind.ALL_GATHER,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
}


class Measured(Struct, frozen=True):
    """One published time: of a collective, or of a dispatch where `model` is there."""

    gpu: Gpu
    family: str
    source: str
    words: str
    seconds: float
    ranks: int
    num_bytes: float
    kind: CollectiveKind = CollectiveKind.DISPATCH
    model: ModelSpec | None = None
    sharp: bool = True
    sms: int | None = None
    network: str = ""


def collectives() -> tuple[Measured, ...]:
    """Rows of NCCL."""
    return tuple(
        Measured(
            gpu=_gpu(row["gpu"]),
            family=FAMILIES[row["gpu"]],
            source=f"{row['gpu']} {row['source'].split()[0]}",
            words=f"{row['library']}, {row['operation']} over {row['ranks']} ranks",
            seconds=float(row["microseconds"]) / 1e6,
            ranks=int(row["ranks"]),
            num_bytes=float(row["full_bytes"]),
            kind=_KINDS[row["operation"]],
            sharp="ring" not in row["library"],
            network=row["network"],
        )
        for row in read_csv(TABLES / "collectives.csv")[1]
    )


def dispatches() -> tuple[Measured, ...]:
    """Rows of DeepEP and HybridEP as Megatron calls them; none of the kernel alone."""
    rows = (
        row for row in read_csv(TABLES / "dispatch.csv")[1] if not _kernel_alone(row["library"])
    )
    return tuple(_dispatch(row) for row in rows)


def _kernel_alone(library: str) -> bool:
    return "kernel only" in library or "Only Kernel" in library


def _dispatch(row: dict[str, str]) -> Measured:
    gpu, ranks = _gpu(row["gpu"]), int(row["ranks"])
    backend = FlexBackend(row["library"].split(",")[0].lower())
    grouped = int(row["groups"]) > 1
    model = replace(
        load_model("deepseek_v3"),
        num_moe_experts=int(row["experts"]),
        moe_router_topk=int(row["topk"]),
        moe_router_num_groups=int(row["groups"]) if grouped else None,
        moe_router_group_topk=int(row["group_topk"]) if grouped else None,
        moe_token_dispatcher_type=TokenDispatcher.FLEX,
        moe_flex_dispatcher_backend=backend,
    )
    value, num_bytes = float(row["value"]), float(row["token_bytes"])
    parts = ranks // ranks_of_a_node(gpu, ranks, 1) if "nodes" in row["unit"] else ranks
    copies = parts * reached(Routing.of_model(model), parts)
    seconds = value / 1e6 if row["unit"] == "us" else num_bytes * copies / (value * 1e9)
    return Measured(
        gpu=gpu,
        family=FAMILIES[row["gpu"]],
        source=f"{row['gpu']} {row['library']} {row['source'].split()[0]}",
        words=f"{row['library']}, {row['operation']} over {ranks} ranks, {row['sms'] or '?'} SMs",
        seconds=seconds,
        ranks=ranks,
        num_bytes=num_bytes,
        model=model,
        sms=int(row["sms"]) if row["sms"] else None,
    )


@lru_cache(maxsize=16)
def _gpu(name: str) -> Gpu:
    return load_gpu({"A100": "A100-SXM-80GB", "H100": "H100-SXM-80GB"}.get(name, name))


def predicted(row: Measured, calibration: Calibration) -> float:
    """Seconds of `row` by the advisor's own functions."""
    if row.model is not None:
        layout = ParallelLayout(expert_model_parallel_size=row.ranks, data_parallel_size=row.ranks)
        sent = flex_dispatcher(layout, row.model, row.gpu, calibration, row.sms)
        return sent.seconds(row.num_bytes)
    if row.kind is CollectiveKind.ALL_TO_ALL:
        joined = all_to_all_link(row.gpu, calibration, row.ranks, 1)
    else:
        joined = link(row.gpu, calibration, row.ranks, 1)
        if not row.sharp:
            joined = replace(joined, reducing_bytes_per_second=0.0)
    return collective_seconds(row.kind, row.num_bytes, row.ranks, joined)


_BASE = Calibration(
    name="network",
    provenance=Provenance.PUBLISHED,
    gemm_efficiency=1.0,
    fp8_gemm_efficiency=1.0,
    attention_forward_efficiency=1.0,
    attention_backward_efficiency=1.0,
    bandwidth_efficiency=1.0,
    nvlink_efficiency=1.0,
    internode_efficiency=1.0,
    hidden_fraction=1.0,
    kernel_seconds=0.0,
    collective_seconds=0.0,
    step_seconds=0.0,
    step_time_error=0.0,
)
_RACK = 72
_LEAST_BYTES = 2**20
_PRIOR = 0.3
"""Of a constant's logarithm: what a row that is 30 % off weighs, once for all rows of a source."""


def fit(rows: Sequence[Measured]) -> Fit:
    """Every source weighs as much as the root of its rows."""
    families = sorted(set(FAMILIES.values()))
    moved = [Constant(field=name, value=value, sigma=_PRIOR) for name, value in SHARED.items()]
    moved += [
        Constant(field=name, value=value, sigma=_PRIOR, family=family)
        for family in families
        for name, value in OF_FAMILY.items()
    ]
    counts = Counter(row.source for row in rows)
    weights = [counts[row.source] ** -0.25 / 0.1 for row in rows]

    def misses(tried: Fit) -> Iterator[float]:
        by_family = tried.calibrations
        for row, weight in zip(rows, weights, strict=True):
            yield weight * log(predicted(row, by_family[row.family]) / row.seconds)

    return fitted(moved, dict.fromkeys(families, _BASE), misses)


def errors(rows: Iterable[Measured], found: Fit) -> list[float]:
    """Relative errors, predicted over measured."""
    by_family = found.calibrations
    return [predicted(row, by_family[row.family]) / row.seconds - 1 for row in rows]


def fitted_rows() -> tuple[Measured, ...]:
    """Rows that the fit sees: of what layers and optimizers send, a megabyte and more.

    Those over EFA are left out, whose first byte takes several times as long as InfiniBand's, and
    those of GB200 beyond one rack: one site, over 20 racks twice as slow as over two.
    """
    return tuple(row for row in (*collectives(), *dispatches()) if _fits(row))


def _fits(row: Measured) -> bool:
    beyond = row.ranks > row.gpu.nvlink_domain_size >= _RACK
    return row.num_bytes >= _LEAST_BYTES and row.network != "EFA" and not beyond


def weak_scaling() -> dict[str, list[tuple[int, float]]]:
    """GPUs and seconds of the same work a GPU, by job: on ever more of them."""
    _, steps = read_csv(TABLES.parent / "dgxc_benchmarking.csv")
    jobs: dict[str, list[tuple[int, float]]] = {}
    for row in steps:
        gpus, table = int(row["num_gpus"]), row["source_path_or_table"].split(":")[-1]
        job = f"{row['model']} {row['precision']}, {int(row['gbs']) / gpus:g} per GPU, {table}"
        jobs.setdefault(job, []).append((gpus, float(row["step_time_s"])))
    for row in read_csv(TABLES / "scale.csv")[1]:
        if "weak scaling" in row["job"]:
            jobs.setdefault(row["job"], []).append((int(row["gpus"]), 1 / float(row["value"])))
    return {job: rows for job, rows in jobs.items() if len(rows) > 1}


def spread_error(job: Sequence[tuple[int, float]], spread: float) -> float:
    """Root mean square of how far a job's times are off the law, its own level aside."""
    away = [log(seconds / (1 + waiting_share(gpus, spread))) for gpus, seconds in job]
    return float(np.std(away))


def speed_spread(jobs: Iterable[Sequence[tuple[int, float]]] | None = None) -> float:
    """The spread of the GPUs' speed under which all jobs scale best."""
    known = tuple(weak_scaling().values() if jobs is None else jobs)
    tried = np.arange(0.0, 0.08, 0.0005)
    squares = [sum(spread_error(job, spread) ** 2 for job in known) for spread in tried]
    return float(tried[int(np.argmin(squares))])


def constants(rows: Sequence[Measured] | None = None) -> dict[str, dict[str, float]]:
    """By generation (a100, h100, b200): the calibration's fields of communication."""
    found, spread = fit(rows or fitted_rows()), {"speed_spread": speed_spread()}
    return {
        family: {name: significant(value, 3) for name, value in found.values(family).items()}
        | spread
        for family in found.base
    }


def main() -> None:
    """Print constants, and errors of each source fitted and left out."""
    rows = fitted_rows()
    for family, values in constants(rows).items():
        print(family, values)
    jobs = weak_scaling()
    print(f"speed_spread {speed_spread():.4f}")
    for job, times in jobs.items():
        others = speed_spread(each for name, each in jobs.items() if name != job)
        was, now = spread_error(times, 0.0), spread_error(times, others)
        print(f"  {job}: error {now:.2%} with a spread of {others:.4f}, {was:.2%} with none")
    found = fit(rows)
    for source, fitted_on, own in splits(rows, lambda row: row.source):
        seen, unseen = Errors.of(errors(own, found)), Errors.of(errors(own, fit(fitted_on)))
        print(
            f"{source[:60]:60} {seen.count:4} rows, fitted mean {seen.mean:.1%} bias "
            f"{seen.bias:+.1%}, left out {unseen.mean:.1%} worst {unseen.worst:+.1%}"
        )


if __name__ == "__main__":
    main()
