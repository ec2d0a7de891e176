"""Refits configs/calibration/{a100,h100,b200}.yaml on results/published.

python -m harness.calibration.published            write the files and print every row's error
python -m harness.calibration.published --check    exit 1 where a file differs from the fit
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.configuration import packaged_configs
from advisor.hardware.calibration import Calibration
from harness.calibration.fit import PRIORS, Fit, fit, left_out, rounded
from harness.calibration.rows.dgxc import dgxc_targets
from harness.calibration.rows.korthikanti import korthikanti_targets
from harness.calibration.rows.row import PUBLISHED
from harness.calibration.rows.simumax import simumax_targets
from harness.calibration.targets import Target, relative_error

_LEAST_BAND = 0.10
"""Rows of one source say nothing of other software: versions lie up to 20 % apart
(results/published/README.md), which is 10 % to either side."""
_BAND_QUANTILE = 0.9
_DESCRIPTION = "Refit the calibrations of A100, H100 and B200 on published step times."


class Subject(Struct, frozen=True):
    """A calibration: the rows it is fitted on, and what its left-out check leaves out."""

    name: str
    targets: Callable[[Path], tuple[Target, ...]]
    left_out: str


def _dense_h100_targets(folder: Path) -> tuple[Target, ...]:
    """Rows without experts."""
    return tuple(one for one in dgxc_targets(folder) if one.job.model.num_moe_experts is None)


SUBJECTS = (
    Subject("a100", korthikanti_targets, "one table"),
    Subject("h100", _dense_h100_targets, "one model"),
    Subject("b200", simumax_targets, "one layout"),
)


class Report(Struct, frozen=True):
    """A finished fit with its errors, row by row, in the order of the targets."""

    subject: Subject
    targets: tuple[Target, ...]
    fit: Fit
    fit_errors: tuple[float, ...]
    left_out_errors: tuple[float, ...]

    @property
    def calibration(self) -> Calibration:
        """What the file holds."""
        left = f"{self.subject.left_out} at a time: {_spread(self.left_out_errors)}"
        return replace(
            self.fit.calibration,
            step_time_error=self.step_time_error,
            fitted_on=_sources(self.targets),
            fit_error=f"{_spread(self.fit_errors)}, {len(self.targets)} rows",
            left_out_error=left,
        )

    @property
    def step_time_error(self) -> float:
        """90 % quantile of the absolute left-out errors, up to the next per cent, or the least."""
        ordered = sorted(abs(error) for error in self.left_out_errors)
        quantile = ordered[math.ceil(_BAND_QUANTILE * len(ordered)) - 1]
        return max(_LEAST_BAND, math.ceil(quantile * 100) / 100)


def report(subject: Subject, folder: Path = PUBLISHED) -> Report:
    """Fit and left-out check of one calibration."""
    targets = subject.targets(folder)
    whole = fit(subject.name, targets)
    whole = Fit(rounded(whole.calibration), whole.widths)
    unseen = dict(left_out(targets))
    return Report(
        subject,
        targets,
        whole,
        tuple(relative_error(target, whole.calibration) for target in targets),
        tuple(unseen[target] for target in targets),
    )


def yaml_text(done: Report) -> str:
    """The file of a calibration; every constant says where it comes from."""
    calibration = done.calibration
    lines = [
        "# Written by `python -m harness.calibration.published`: do not edit.",
        f"name: {calibration.name}",
        f"provenance: {calibration.provenance}",
    ]
    for field, prior in PRIORS.items():
        value, left = getattr(calibration, field), done.fit.widths[field] * prior.sigma
        typical = f"{prior.value:g}"
        if field == "fp8_gemm_efficiency":
            typical += " x gemm_efficiency"
        about = f"prior {typical} ±{prior.sigma:.0%}, after the fit ±{left:.0%}"
        lines.append(f"{field}: {value:#.3g}  # {about}")
    lines += [
        f"step_time_error: {calibration.step_time_error:.2f}",
        f"fit_error: {calibration.fit_error}",
        f"left_out_error: '{calibration.left_out_error}'",
        "fitted_on:",
        *(f"  - '{source}'" for source in calibration.fitted_on),
    ]
    return "\n".join(lines) + "\n"


def table(done: Report) -> str:
    """Measured and predicted, row by row."""
    lines = [f"{done.subject.name}: measured s, fitted, {done.subject.left_out} left out"]
    rows = zip(done.targets, done.fit_errors, done.left_out_errors, strict=True)
    for target, fitted, unseen in rows:
        errors = f"{fitted:+7.1%} {unseen:+7.1%}"
        lines.append(f"  {target.name:<48} {target.seconds:9.4f} {errors}")
    lines.append(f"  fit {done.calibration.fit_error}")
    lines.append(f"  left out, {done.calibration.left_out_error}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Refit, print, and write or compare."""
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument("--tables", type=Path, default=PUBLISHED, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=packaged_configs() / "calibration")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    stale = []
    for subject in SUBJECTS:
        done = report(subject, options.tables)
        print(table(done))
        path, text = options.out / f"{subject.name}.yaml", yaml_text(done)
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
    for path in stale:
        print(f"{path} differs from the fit", file=sys.stderr)
    return 1 if stale else 0


def _spread(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"mean {sum(sizes) / len(sizes):.1%}, worst {max(sizes):.1%}".replace("%", " %")


def _sources(targets: Sequence[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.source for target in targets))


if __name__ == "__main__":
    sys.exit(main())
