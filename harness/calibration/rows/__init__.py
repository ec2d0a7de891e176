"""Jobs behind the rows of results/published: one module a source."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from harness.calibration.rows.bridge_skills import bridge_skills_targets
from harness.calibration.rows.bridge_summary import bridge_summary_targets
from harness.calibration.rows.dgxc import dgxc_targets
from harness.calibration.rows.korthikanti import korthikanti_targets
from harness.calibration.rows.row import PUBLISHED
from harness.calibration.rows.simumax import simumax_targets
from harness.calibration.targets import Target

SOURCES: Final[dict[str, Callable[[Path], tuple[Target, ...]]]] = {
    "korthikanti2022": korthikanti_targets,
    "dgxc_benchmarking": dgxc_targets,
    "simumax_b200": simumax_targets,
    "mbridge_perf_summary": bridge_summary_targets,
    "mbridge_skills": bridge_skills_targets,
}
"""Tables of results/published by the name of their file, and who reads them."""


def all_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Every usable row of every table."""
    return tuple(target for read in SOURCES.values() for target in read(folder))
