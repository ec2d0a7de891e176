"""What was measured, row by row of results/published, and the job of each: one module a source."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from research.rows.bridge_skills import bridge_skills_targets
from research.rows.bridge_summary import bridge_summary_targets
from research.rows.dgxc import dgxc_targets
from research.rows.fms_fsdp import fms_fsdp_targets
from research.rows.korthikanti import korthikanti_targets
from research.rows.llm_foundry import llm_foundry_targets
from research.rows.megatron_ci import megatron_ci_targets
from research.rows.megatron_readme import megatron_readme_targets
from research.rows.ml_engineering import ml_engineering_targets
from research.rows.row import PUBLISHED
from research.rows.simumax import simumax_targets
from research.rows.targets import Target
from research.rows.torchtitan_docs import torchtitan_targets

SOURCES: Final[dict[str, Callable[[Path], tuple[Target, ...]]]] = {
    "korthikanti2022": korthikanti_targets,
    "dgxc_benchmarking": dgxc_targets,
    "simumax_b200": simumax_targets,
    "mbridge_perf_summary": bridge_summary_targets,
    "mbridge_skills": bridge_skills_targets,
    "llm_foundry": llm_foundry_targets,
    "ibm_fms_fsdp": fms_fsdp_targets,
    "torchtitan": torchtitan_targets,
    "stas_h200_b200": ml_engineering_targets,
    "megatron_lm_readme_scaling": megatron_readme_targets,
    "megatron_lm_ci_golden": megatron_ci_targets,
}
"""Tables of results/published by the name of their file, and who reads them."""


def all_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Every usable row of every table."""
    return tuple(target for read in SOURCES.values() for target in read(folder))
