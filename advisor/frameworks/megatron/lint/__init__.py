"""`advise lint`: checks the recompute settings of a training script or configuration."""

from advisor.frameworks.megatron.lint.report import Level, LintReport, lint_target, render

__all__ = ["Level", "LintReport", "lint_target", "render"]
