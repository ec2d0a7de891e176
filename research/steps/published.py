"""Refits configs/calibration/{a100,h100,b200}.yaml on results/published and our own kernels.

python -m research.steps.published            write the files and print every row's error
python -m research.steps.published --check    exit 1 where a file differs from the fit

Constants of single kernels and of collectives come first (research.kernels); on whole
steps only those of research.steps.constants are fitted, on all GPUs at once.
"""

import argparse
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import packaged_configs
from advisor.base.fields import spelled
from advisor.base.units import significant
from advisor.hardware.calibration import Calibration, KnownError, OwnErrors
from advisor.hardware.catalogue import load_gpu
from advisor.request.origin import stated_fields
from research.kernels import attention, gemm_fit, network, traffic
from research.kernels.least_squares import Errors, Fit
from research.rows import all_targets
from research.rows.row import PUBLISHED
from research.rows.targets import Kind, Target
from research.steps.constants import CONSTANTS, GENERATIONS, prior_calibration
from research.steps.fit import errors, fit
from research.steps.known import known_errors, tells

_A100_BACKWARD: Final = 63 / 73
LEAST_BAND: Final = 0.05
"""Throughput repeats to that within a source (results/published/README.md)."""
BAND_QUANTILE: Final = 0.9
LEAST_ROWS_OF_A_BAND: Final = 10
"""Of which nine tell what nine of ten do."""
_DESCRIPTION: Final = "Refit the calibrations of A100, H100 and B200 on published step times."


class Report(Struct, frozen=True):
    """A finished fit with its errors, row by row, in the order of the targets.

    left_out_errors: by way of leaving out, see WAYS. known_errors: see research.steps.known; by the
    calibration of their GPU.
    """

    targets: tuple[Target, ...]
    fit: Fit
    fit_errors: tuple[float, ...]
    left_out_errors: dict[str, tuple[float, ...]]
    known_errors: dict[str, tuple[KnownError, ...]] = {}

    def calibration(self, generation: str) -> Calibration:
        """What a file holds."""
        there = [i for i, t in enumerate(self.targets) if t.job.gpu.calibration == generation]
        gpus = sorted({self.targets[i].job.gpu.name for i in there})
        bands = {
            kind: max(self.unseen_band(kind), *(self.band(kind, gpu) for gpu in gpus))
            for kind in Kind
        }
        unseen = _spread(self.left_out_errors["model"][i] for i in there)
        return replace(
            self.fit.calibrations[generation],
            step_time_error=bands[Kind.DENSE],
            experts_step_time_error=bands[Kind.EXPERTS],
            eager_step_time_error=bands[Kind.EAGER],
            own_errors=tuple(self._own_errors(gpu) for gpu in gpus),
            known_errors=self.known_errors.get(generation, ()),
            fitted_on=tuple(dict.fromkeys(self.targets[i].source for i in there)),
            fit_error=f"{_spread(self.fit_errors[i] for i in there)}, {len(there)} rows",
            left_out_error=f"{unseen}, each model left out of the fit in turn",
        )

    def _own_errors(self, gpu: str) -> OwnErrors:
        return OwnErrors(
            gpu=gpu,
            step_time_error=self.band(Kind.DENSE, gpu),
            experts_step_time_error=self.band(Kind.EXPERTS, gpu),
            eager_step_time_error=self.band(Kind.EAGER, gpu),
        )

    def band(self, kind: Kind, gpu: str) -> float:
        """Of a class of jobs on a GPU with rows of it, 0 without: 90 % quantile of its rows' errors
        by the fit that knows least of them, without their model, source or release; of few rows,
        of all of the GPU's generation, or of all."""
        of_kind = [i for i, target in enumerate(self.targets) if target.kind is kind]
        own = [i for i in of_kind if self.targets[i].job.gpu.name == gpu]
        if not own:
            return 0.0
        family = self.targets[own[0]].job.gpu.calibration
        near = [i for i in of_kind if self.targets[i].job.gpu.calibration == family]
        rows = next((some for some in (own, near) if len(some) >= LEAST_ROWS_OF_A_BAND), of_kind)
        return self._quantile(rows, ("model", "source", "release"))

    def unseen_band(self, kind: Kind) -> float:
        """The same by fits without the rows' GPU. A GPU without rows has this band, or that of any
        GPU of its generation that is wider."""
        return self._quantile(
            [i for i, target in enumerate(self.targets) if target.kind is kind], ("gpu",)
        )

    def _quantile(self, rows: Sequence[int], ways: Sequence[str]) -> float:
        """Of how far the measured time of each row lies at most from what is predicted, in parts of
        that, at least LEAST_BAND, up to the next per cent."""
        errors = [self.left_out_errors[way] for way in ways]
        ordered = sorted(max(abs(1 / (1 + error[i]) - 1) for error in errors) for i in rows)
        quantile = ordered[math.ceil(BAND_QUANTILE * len(ordered)) - 1]
        return max(LEAST_BAND, math.ceil(quantile * 100) / 100)


def fitted_targets(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Those that steps are fitted on."""
    return tuple(target for target in targets if not target.judged_only)


def shape(target: Target) -> Hashable:
    """Rows that the left-out check leaves out together: those of one model, whatever its name,
    depth, GPU and source."""
    return target.job.model.hidden_size, target.job.model.num_moe_experts


def _release(target: Target) -> Hashable:
    """Rows of one release of one source."""
    return target.table, target.job.config.framework_version or target.source.split(":")[0]


WAYS: Final[dict[str, Callable[[Target], Hashable]]] = {
    "model": shape,
    "gpu": lambda target: target.job.gpu.name,
    "source": lambda target: target.table,
    "release": _release,
}
"""How a left-out check leaves rows out: those of one model, GPU, source or release at a time."""

OfKernels = dict[str, dict[str, tuple[float, str]]]
"""By generation and field: a constant of kernels or collectives, and on what it was fitted."""


def report(folder: Path = PUBLISHED, kernels: OfKernels | None = None) -> Report:
    """Fit and left-out check. kernels: those of `of_kernels`; without them the files' own stay."""
    every = all_targets(folder)
    targets, priors = fitted_targets(every), {}
    for name in GENERATIONS:
        fresh = (kernels or {}).get(name, {})
        values = {field: significant(value, 3) for field, (value, _) in fresh.items()}
        priors[name] = replace(prior_calibration(name), **values)
    done = fit(targets, WAYS, priors)
    return Report(
        targets,
        done,
        tuple(errors(targets, done.calibrations)),
        {way: tuple(math.exp(miss) - 1 for miss in found) for way, found in done.left_out.items()},
        {name: _known_errors(name, done, every) for name in GENERATIONS},
    )


def _known_errors(generation: str, done: Fit, every: Iterable[Target]) -> tuple[KnownError, ...]:
    """Of the rows of one generation, those that are judged for no reason of theirs as well."""
    there = [
        target for target in every if tells(target) and target.job.gpu.calibration == generation
    ]
    return tuple(known_errors(there, errors(there, done.calibrations)))


def of_kernels() -> OfKernels:
    """Constants of kernels and collectives, fitted anew."""
    made: OfKernels = {name: {} for name in GENERATIONS}
    gemms = [row for row in gemm_fit.rows() if gemm_fit.is_fitted(row)]
    for name, field, value, count in gemm_fit.constants(gemm_fit.fit(gemms), gemms):
        made[name][field] = value, f"isolated GEMMs, {count} rows"
    no_narrow = made["a100"]["gemm_efficiency"][0], "no FP8 tensor cores"
    made["a100"]["fp8_gemm_efficiency"] = no_narrow
    for one, value, error in attention.constants((*attention.published(), *attention.measured())):
        if one.family:
            made[one.family][one.field] = value, f"isolated attention, {error.count} rows"
    forward = made["a100"]["attention_forward_efficiency"][0]
    made["a100"]["attention_backward_efficiency"] = (
        forward * _A100_BACKWARD,
        "forward value x 63 / 73, the best backward over the best forward (arXiv 2307.08691)",
    )
    eager = traffic.constants(traffic.moved())["eager_bandwidth_share"]
    for name, gpu in ((name, load_gpu(gpu)) for name, gpu in gemm_fit.GPUS.items()):
        watts = (gpu.board_power_watts or 0.0) / (gpu.bf16_flops / 10**12)
        made[name]["watts_per_teraflop"] = watts, f"board power of {gpu.name} over its peak"
    for name, values in network.constants().items():
        made[name] |= {field: (value, "isolated collectives") for field, value in values.items()}
        made[name]["eager_bandwidth_share"] = eager, "isolated kernels of eager torch"
    return made


def yaml_text(
    done: Report, generation: str, kernels: dict[str, tuple[float, str]] | None = None
) -> str:
    """The file of a calibration; every constant says where it comes from. kernels: those of
    `of_kernels`; without them the file's own stay."""
    calibration = done.calibration(generation)
    lines = [
        "# Written by `python -m research.steps.published`: do not edit.",
        f"name: {calibration.name}",
        f"provenance: {calibration.provenance}",
    ]
    for field, (value, about) in sorted((kernels or {}).items()):
        lines.append(f"{field}: {value:#.3g}  # {about}")
    for constant in CONSTANTS:
        value = getattr(calibration, constant.field)
        width = done.fit.widths.get(
            constant.field, done.fit.widths.get(f"{constant.field} {generation}", 1.0)
        )
        about = f"prior {constant.value:g} ±{constant.sigma:.0%}"
        about += f", after the fit ±{width * constant.sigma:.0%}"
        lines.append(f"{constant.field}: {value:#.3g}  # whole steps, {about}")
    lines += [
        f"step_time_error: {calibration.step_time_error:.2f}",
        f"experts_step_time_error: {calibration.experts_step_time_error:.2f}",
        f"eager_step_time_error: {calibration.eager_step_time_error:.2f}",
        *_own_error_lines(calibration.own_errors),
        *_known_error_lines(calibration.known_errors),
        f"fit_error: {calibration.fit_error}",
        f"left_out_error: '{calibration.left_out_error}'",
        "fitted_on:",
        *(f"  - '{source}'" for source in calibration.fitted_on),
    ]
    return "\n".join(lines) + "\n"


def _own_error_lines(found: Sequence[OwnErrors]) -> Iterator[str]:
    """A line a GPU: its bands that are not 0."""
    yield "own_errors:"
    for own in found:
        said = stated_fields(own).items()
        yield f"  - {{{', '.join(f'{name}: {spelled(value)}' for name, value in said)}}}"


def _known_error_lines(found: Sequence[KnownError]) -> Iterator[str]:
    """An entry a class: its fields that are not the usual ones, and the figures."""
    if found:
        yield "known_errors:"
    for error in found:
        said = stated_fields(error.of).items()
        yield f"  - of: {{{', '.join(f'{name}: {spelled(value)}' for name, value in said)}}}"
        figures = ("rows", "mean", "low", "high")
        yield from (f"    {name}: {getattr(error, name)}" for name in figures)


def table(done: Report) -> str:
    """Measured and predicted, row by row, then each class of jobs."""
    lines = [f"measured s, error of the fit, error with the {', '.join(WAYS)} left out"]
    for i, target in enumerate(done.targets):
        unseen = " ".join(f"{errors[i]:+7.1%}" for errors in done.left_out_errors.values())
        fitted = f"{target.seconds:9.4f} {done.fit_errors[i]:+7.1%}"
        lines.append(f"  {target.name:<72} {fitted} {unseen}")
    for kind in Kind:
        of_it = [i for i, target in enumerate(done.targets) if target.kind is kind]
        spreads = ", ".join(
            f"{way} left out {_spread(errors[i] for i in of_it)}"
            for way, errors in done.left_out_errors.items()
        )
        fitted = _spread(done.fit_errors[i] for i in of_it)
        lines.append(f"  {kind}: {len(of_it)} rows, fit {fitted}; {spreads}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Refit, print, and write or compare."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument("--tables", type=Path, default=PUBLISHED, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=packaged_configs() / "calibration")
    parser.add_argument(
        "--check", action="store_true", help="compare with the files, write nothing"
    )
    options = parser.parse_args(arguments)
    kernels = of_kernels()
    done = report(options.tables, kernels)
    print(table(done))
    stale = []
    for generation in GENERATIONS:
        path = options.out / f"{generation}.yaml"
        text = yaml_text(done, generation, kernels[generation])
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"{path} differs from the fit", file=sys.stderr)
    return 1 if stale else 0


def _spread(errors: Iterable[float]) -> str:
    found = Errors.of(errors)
    return f"mean {found.mean:.1%}, worst {abs(found.worst):.1%}".replace("%", " %")


if __name__ == "__main__":
    sys.exit(main())
