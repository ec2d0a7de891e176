"""`advise lint`: checks the recompute settings of a training script or configuration."""

from advisor.frameworks.megatron.lint.report import (
    Level,
    LintReport,
    level_of,
    lint_target,
    understood,
)

__all__ = ["Level", "LintReport", "level_of", "lint_target", "understood"]
