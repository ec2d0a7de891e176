"""A setting in the words of each framework, as the reports print it."""

from typing import Final

from advisor.answer import Advice, Evaluation
from advisor.frameworks.megatron.revisions import Revision, resolve_revision
from advisor.job import Framework, JobConfig

NO_FLAGS: Final = "(no flag: recompute is off unless a flag asks for it)"
LABELS: Final = {
    Framework.MEGATRON_LM: "Megatron-LM",
    Framework.MEGATRON_BRIDGE: "Megatron Bridge",
}


def all_flags(evaluation: Evaluation) -> dict[Framework, str]:
    """The setting's flags for every framework, verbatim; empty where the default is meant."""
    return {framework: framework_flags(evaluation, framework) for framework in Framework}


def framework_flags(evaluation: Evaluation, framework: Framework) -> str:
    """The setting's flags for one framework, to be pasted behind its launch command."""
    job = evaluation.job
    revision = _revision(job.config, framework)
    if framework is Framework.MEGATRON_LM:
        from advisor.frameworks.megatron.flags import megatron_lm_flags

        return megatron_lm_flags(evaluation.setting, job, revision)
    from advisor.frameworks.megatron.bridge import bridge_overrides

    return bridge_overrides(evaluation.setting, job, revision)


def framework_assumed_flags(evaluation: Evaluation, framework: Framework) -> str:
    """Flags without which the job is not the one that was predicted."""
    job = evaluation.job
    if framework is Framework.MEGATRON_LM:
        from advisor.frameworks.megatron.flags import assumed_flags

        return assumed_flags(job, _revision(job.config, framework))
    from advisor.frameworks.megatron.bridge import assumed_overrides

    return assumed_overrides(job)


def framework_layout_flags(evaluation: Evaluation, framework: Framework) -> str:
    """Flags of the candidate's layout and batch, for a search that chose them."""
    job = evaluation.job
    revision = _revision(job.config, framework)
    if framework is Framework.MEGATRON_LM:
        from advisor.frameworks.megatron.flags import layout_flags

        return layout_flags(job, revision)
    from advisor.frameworks.megatron.bridge import bridge_layout_overrides

    return bridge_layout_overrides(job, revision)


def environment_words(evaluation: Evaluation) -> str:
    """``NAME=value`` of every variable without which the flags are refused or mean less."""
    from advisor.frameworks.megatron.flags import environment

    job = evaluation.job
    revision = _revision(job.config, job.config.framework)
    return " ".join(environment(evaluation.setting, job, revision))


def flags_report(advice: Advice, *, with_layout: bool = False) -> str:
    """`--format flags`: the chosen setting's flags for the framework of the job, one line."""
    from advisor.report.wording import chosen

    best = chosen(advice)
    if best is None:
        return ""
    framework = advice.job.config.framework
    job_flags = framework_layout_flags if with_layout else framework_assumed_flags
    flags = (
        job_flags(best.evaluation, framework), framework_flags(best.evaluation, framework),
    )  # fmt: skip
    return " ".join(filter(None, flags)) + "\n"


def revision_words(config: JobConfig) -> str:
    """``Megatron Core 0.19``; for Bridge its own version and that of the core behind it."""
    revision = _revision(config, config.framework)
    core = f"Megatron Core {revision.core}"
    if config.framework is Framework.MEGATRON_LM:
        return core
    return f"{LABELS[config.framework]} {revision.version} ({core})"


def _revision(config: JobConfig, framework: Framework) -> Revision:
    """The job's release of its own framework; the default one of the other framework."""
    version = config.framework_version if framework is config.framework else ""
    return resolve_revision(framework, version)
