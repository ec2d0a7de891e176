"""A setting in the words of each framework, as the reports print it."""

from typing import Final

from advisor.answer.advice import Advice, Evaluation
from advisor.frameworks.registry import stack_of
from advisor.job.job import Framework, Job
from advisor.models.variants import of_providers

NO_FLAGS: Final = "(no flag: recompute is off unless a flag asks for it)"
LABELS: Final = {
    Framework.MEGATRON_LM: "Megatron-LM",
    Framework.MEGATRON_BRIDGE: "Megatron Bridge",
    Framework.NEMO: "NeMo",
    Framework.TORCHTITAN: "torchtitan",
    Framework.FSDP2: "PyTorch",
    Framework.DEEPSPEED: "DeepSpeed",
    Framework.HUGGINGFACE: "Hugging Face",
}


def all_flags(evaluation: Evaluation) -> dict[Framework, str]:
    """The setting's flags, verbatim, for every framework that takes such settings; empty where the
    default is meant."""
    family = _family(evaluation.job)
    return {framework: framework_flags(evaluation, framework) for framework in family}


def _family(job: Job) -> tuple[Framework, ...]:
    """Frameworks that take the job's settings and build its model."""
    family = stack_of(job.config.framework).family
    if next(of_providers(job.model), None) is None:
        return family
    return tuple(framework for framework in family if framework is not Framework.MEGATRON_LM)


def shown_frameworks(job: Job) -> tuple[Framework, ...]:
    """Frameworks whose flags a page shows: of the job's family the two that everybody uses, and
    the job's own."""
    family = _family(job)
    usual = (Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, job.config.framework)
    return tuple(dict.fromkeys(framework for framework in usual if framework in family))


def framework_flags(evaluation: Evaluation, framework: Framework) -> str:
    """The setting's flags for one framework, to be pasted behind its launch command."""
    return stack_of(framework).setting_flags(evaluation.setting, evaluation.job)


def framework_assumed_flags(evaluation: Evaluation, framework: Framework) -> str:
    """Flags without which the job is not the one that was predicted."""
    return stack_of(framework).assumed_flags(evaluation.job)


def framework_layout_flags(evaluation: Evaluation, framework: Framework) -> str:
    """Flags of the candidate's layout and batch, for a search that chose them."""
    return stack_of(framework).layout_flags(evaluation.job)


def environment_words(evaluation: Evaluation) -> str:
    """``NAME=value`` of every variable without which the flags are refused or mean less."""
    stack = stack_of(evaluation.job.config.framework)
    return " ".join(stack.environment(evaluation.setting, evaluation.job))


def flags_report(advice: Advice, *, with_layout: bool = False) -> str:
    """`--format flags`: the chosen setting's flags for the framework of the job, one line."""
    from advisor.report.wording import chosen

    best = chosen(advice)
    if best is None:
        return ""
    framework = advice.job.config.framework
    job_flags = framework_layout_flags if with_layout else framework_assumed_flags
    flags = (
        job_flags(best.evaluation, framework),
        framework_flags(best.evaluation, framework),
    )
    return " ".join(filter(None, flags)) + "\n"


def file_report(advice: Advice) -> str:
    """`--format file`: the chosen setting and its job as the framework's own file."""
    from advisor.report.wording import chosen

    best = chosen(advice)
    if best is None:
        return ""
    evaluation = best.evaluation
    stack = stack_of(evaluation.job.config.framework)
    return stack.config_file(evaluation.setting, evaluation.job)
