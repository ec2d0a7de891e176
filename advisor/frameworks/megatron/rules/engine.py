"""Applies the rules: to raw settings for `advise lint`, to a setting of a job for the ranking."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.rule import Finding, Verdict, findings
from advisor.frameworks.megatron.raw import JobFacts, RawSettings, lower
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules import (
    cp_communication,
    cuda_graphs,
    expert_layers,
    launchers,
    layout_precision,
    recompute_fields,
    unmodelled,
    written_jobs,
)
from advisor.frameworks.megatron.rules.stated import Authority, Rule
from advisor.frameworks.megatron.setting import NONE, RecomputeSetting
from advisor.frameworks.names import Framework
from advisor.job.job import Job

RULES: Final[dict[str, Rule]] = {
    **unmodelled.PRESENCE_RULES,
    **layout_precision.LAYOUT_RULES,
    **expert_layers.SHAPE_RULES,
    **recompute_fields.OFFLOAD_RULES,
    **recompute_fields.CONFIG_RULES,
    **recompute_fields.LABEL_RULES,
    **recompute_fields.MAIN_RULES,
    **recompute_fields.MODULE_RULES,
    **expert_layers.ROUTER_RULES,
    **cuda_graphs.RULES,
    **expert_layers.OVERLAP_RULES,
    **cp_communication.RULES,
    **launchers.RULES,
    **launchers.OPTIMIZER_RULES,
    **launchers.NEMO_RULES,
    **launchers.FSDP_RULES,
    **layout_precision.STEP_RULES,
    **recompute_fields.UNREAD_RULES,
    **layout_precision.HYBRID_RULES,
    **recompute_fields.EFFECT_RULES,
    **unmodelled.UNMODELLED_RULES,
    **written_jobs.RULES,
}
"""Every rule by its id; TransformerConfig's come first and in its own order."""

_OWN: Final = {
    Framework.MEGATRON_LM: Authority.LAUNCHER,
    Framework.MEGATRON_BRIDGE: Authority.BRIDGE,
    Framework.NEMO: Authority.NEMO,
}
"""Whose rules a framework adds to those of TransformerConfig and of the training step."""


@lru_cache(maxsize=64)
def rules_in_force(revision: Revision, *, of_ranked: bool = False) -> Mapping[str, Rule]:
    """The rules that can fire in `revision`: its framework asks them, and the release has them; of
    jobs that are ranked without those that only written ones can break."""
    others = set(_OWN.values()) - {_OWN[revision.framework]}
    return {
        name: rule
        for name, rule in RULES.items()
        if rule.authority not in others
        and rule.stated_in(revision)
        and not (of_ranked and name in written_jobs.RULES)
    }


def find(raw: RawSettings, revision: Revision) -> tuple[Finding, ...]:
    """Every rule that fires on `raw`, in the order of RULES; other launchers' are left out."""
    return tuple(_fired(rules_in_force(revision), raw, revision))


def _fired(rules: Mapping[str, Rule], raw: RawSettings, revision: Revision) -> Iterator[Finding]:
    for found in findings(rules, raw, revision):
        cited, change = RULES[found.rule].cited(revision), found.fix
        if "[" not in change:
            yield replace(found, source=cited, change=change)
            continue
        from advisor.frameworks.megatron.rules.fixes import in_options, with_dependents

        change = with_dependents(change, raw)
        yield replace(found, source=cited, fix=in_options(change, revision), change=change)


def check(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[Rejection, ...]:
    """Why no training comes of `setting` in `job`; empty for a legal setting."""
    found = _rejections(setting, JobFacts(job), revision)
    if job.gpu.is_nvlink_server:
        return found
    from advisor.frameworks.megatron.rules.hardware import hardware_rejections

    return (*hardware_rejections(setting, job), *found)


def notes(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[str, ...]:
    """What is to be said of a legal setting: labels that act on nothing or buy nothing,
    promotions, what the environment must hold; not what remarks say."""
    said = remarks(job, revision)
    return tuple(note for note in _notes(setting, JobFacts(job), revision) if note not in said)


def remarks(job: Job, revision: Revision) -> tuple[str, ...]:
    """What is to be said of a job under any setting: options that nothing reads, those that no
    prediction counts, and another vendor's Transformer Engine."""
    found = tuple(finding.reason for finding in _of_job(JobFacts(job), revision))
    if job.gpu.is_nvlink_server:
        return found
    from advisor.frameworks.megatron.rules.hardware import hardware_remarks

    return (*found, *hardware_remarks(job))


def without_effect(
    setting: RecomputeSetting, job: Job, revision: Revision
) -> tuple[Rejection, ...]:
    """The parts of `setting` that Megatron accepts and ignores, as rejections."""
    of_job = _of_job(JobFacts(job), revision)
    found = (f for f in _find(setting, JobFacts(job), revision) if f not in of_job)
    return tuple(_rejection(setting, f, revision) for f in found if f.verdict is Verdict.NO_EFFECT)


@lru_cache(maxsize=1024)
def _of_job(facts: JobFacts, revision: Revision) -> tuple[Finding, ...]:
    found = _find(NONE, facts, revision)
    said = {*unmodelled.UNMODELLED_RULES, *_OF_COMMAND_LINES}
    return tuple(f for f in found if f.verdict is Verdict.NO_EFFECT or f.rule in said)


_OF_COMMAND_LINES: Final = ("te_loss_fusion",)
"""Rules that are remarks on a job: what they refuse Megatron Core itself accepts."""


@lru_cache(maxsize=65536)
def _rejections(
    setting: RecomputeSetting, facts: JobFacts, revision: Revision
) -> tuple[Rejection, ...]:
    illegal = (finding for finding in _find(setting, facts, revision) if finding.verdict.illegal)
    illegal = (finding for finding in illegal if finding.rule not in _OF_COMMAND_LINES)
    return tuple(_rejection(setting, finding, revision) for finding in illegal)


@lru_cache(maxsize=65536)
def _notes(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> tuple[str, ...]:
    found = _find(setting, facts, revision)
    return tuple(finding.reason for finding in found if not finding.verdict.illegal)


@lru_cache(maxsize=16384)
def _find(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> tuple[Finding, ...]:
    asked = rules_in_force(revision, of_ranked=True)
    return tuple(_fired(asked, lower(setting, facts, revision), revision))


def _rejection(setting: RecomputeSetting, finding: Finding, revision: Revision) -> Rejection:
    breaks = finding.verdict in (Verdict.CRASHES, Verdict.HANGS)
    consequence, fix = f" ({finding.verdict})" if breaks else "", finding.fix
    if finding.change != fix:
        from advisor.frameworks.megatron.rules.fixes import as_keys

        fix = as_keys(finding.change, revision)
    return Rejection(
        setting=setting,
        rule=finding.rule,
        reason=finding.reason + consequence,
        fix=fix,
        source=finding.source,
    )
