"""A setting in the words of each framework, as the reports print it."""

from typing import Final

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.frameworks.registry import adapter_of
from advisor.job.job import Job

NO_FLAGS: Final = "(no flag: recompute is off unless a flag asks for it)"


def all_flags(evaluation: Evaluation) -> dict[str, str]:
    """The setting's flags, verbatim, for every framework that takes such settings; empty where the
    default is meant."""
    family = _family(evaluation.job)
    return {framework: framework_flags(evaluation, framework) for framework in family}


def all_job_flags(evaluation: Evaluation) -> dict[str, str]:
    """All flags of the job, for every framework that takes such settings."""
    family = _family(evaluation.job)
    return {framework: framework_layout_flags(evaluation, framework) for framework in family}


def _family(job: Job) -> tuple[str, ...]:
    """Frameworks that take the job's settings and build its model."""
    family = adapter_of(job.config.framework).family
    return tuple(name for name in family if adapter_of(name).builds(job.model))


def shown_frameworks(job: Job) -> tuple[str, ...]:
    """Frameworks whose flags a page shows: of the job's family those that everybody uses, and the
    job's own."""
    family, own = _family(job), job.config.framework
    usual = (*adapter_of(own).shown, own)
    return tuple(dict.fromkeys(name for name in usual if name in family))


def framework_flags(evaluation: Evaluation, framework: str) -> str:
    """The setting's flags for one framework, to be pasted behind its launch command."""
    return adapter_of(framework).setting_flags(evaluation.setting, evaluation.job)


def framework_layout_flags(evaluation: Evaluation, framework: str) -> str:
    """Flags of the candidate's layout and batch, for a search that chose them."""
    return adapter_of(framework).layout_flags(evaluation.job)


def is_written_out(advice: Answer, framework: str, *, with_layout: bool = False) -> bool:
    """Whether all flags of the job are said: everywhere `with_layout`, and to a framework that does
    not have the recipe that the job is of."""
    return with_layout or advice.recipe_framework != framework


def framework_job_flags(
    advice: Answer, evaluation: Evaluation, framework: str, *, with_layout: bool = False
) -> str:
    """Flags of the job: all of them, or beside its published recipe those that the prediction
    rests on."""
    if is_written_out(advice, framework, with_layout=with_layout):
        return framework_layout_flags(evaluation, framework)
    return adapter_of(framework).assumed_flags(evaluation.job)


def unsaid_comment(evaluation: Evaluation, framework: str) -> str:
    """What of the job the framework's flags do not say; empty where they say all."""
    unsaid = adapter_of(framework).unsaid(evaluation.job)
    return f"# {unsaid}" if unsaid else ""


def environment_words(evaluation: Evaluation) -> str:
    """``NAME=value`` of every variable without which the flags are refused or mean less."""
    stack = adapter_of(evaluation.job.config.framework)
    return " ".join(stack.environment(evaluation.setting, evaluation.job))


def flags_report(advice: Answer, *, with_layout: bool = False) -> str:
    """`--format flags`: the chosen setting's flags for the framework of the job, one line."""
    from advisor.report.wording import chosen

    best = chosen(advice)
    if best is None:
        return ""
    framework = advice.job.config.framework
    flags = (
        framework_job_flags(advice, best.evaluation, framework, with_layout=with_layout),
        framework_flags(best.evaluation, framework),
    )
    return " ".join(filter(None, flags)) + "\n"


def unsaid_report(advice: Answer, *, with_layout: bool = False) -> str:
    """What of the job `--format flags` does not say; empty where it says all."""
    from advisor.report.wording import chosen

    best, framework = chosen(advice), advice.job.config.framework
    if best is None or not is_written_out(advice, framework, with_layout=with_layout):
        return ""
    return adapter_of(framework).unsaid(best.evaluation.job)


def file_report(advice: Answer) -> str:
    """`--format file`: the chosen setting and its job as the framework's own file."""
    from advisor.report.wording import chosen

    best = chosen(advice)
    if best is None:
        return ""
    evaluation = best.evaluation
    stack = adapter_of(evaluation.job.config.framework)
    return stack.config_file(evaluation.setting, evaluation.job)
