"""Applies the rules: to raw settings for `advise lint`, to a setting of a job for the ranking."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from advisor.answer.advice import Rejection
from advisor.frameworks.megatron.lowering import JobFacts, job_facts, lower
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules import (
    connections,
    context_parallel,
    experts,
    fields,
    graphs,
    graphs_experts,
    graphs_recompute,
    hybrid,
    inert,
    labels,
    launchers,
    layout_precision,
    nemo,
    offload,
    optimizers,
    overlap,
    recompute,
    training,
)
from advisor.frameworks.megatron.rules.finding import Authority, Finding, Rule, Verdict
from advisor.frameworks.megatron.rules.sources import source_of, stated_in
from advisor.frameworks.megatron.setting import RecomputeSetting
from advisor.job.job import Framework, Job

RULES: Final[tuple[Rule, ...]] = (
    *fields.RULES,
    *layout_precision.RULES,
    *experts.SHAPE_RULES,
    *offload.LAYER_RULES,
    *recompute.RULES,
    *connections.RULES,
    *offload.MODULE_RULES,
    *experts.ROUTER_RULES,
    *graphs.RULES,
    *graphs_experts.RULES,
    *graphs_recompute.RULES,
    *overlap.RULES,
    *context_parallel.RULES,
    *launchers.RULES,
    *optimizers.RULES,
    *nemo.RULES,
    *training.RULES,
    *inert.RULES,
    *hybrid.RULES,
    *labels.RULES,
)
"""Every rule; TransformerConfig's come first and in its own order."""


def in_force(rule: Rule, revision: Revision) -> bool:
    """Whether `rule` can fire in `revision`: its framework asks it, and the release states it."""
    if rule in connections.RULES:
        return revision.at_least(0, 20)
    return rule in _rules_of(revision.framework) and stated_in(rule.id, revision)


_OWN: Final = {
    Framework.MEGATRON_LM: Authority.LAUNCHER,
    Framework.MEGATRON_BRIDGE: Authority.BRIDGE,
    Framework.NEMO: Authority.NEMO,
}
"""Whose rules a framework adds to those of TransformerConfig and of the training step."""


@lru_cache(maxsize=8)
def _rules_of(framework: Framework) -> tuple[Rule, ...]:
    """All rules but those of other launchers."""
    others = set(_OWN.values()) - {_OWN[framework]}
    return tuple(rule for rule in RULES if rule.authority not in others)


def find(raw: RawSettings, revision: Revision) -> tuple[Finding, ...]:
    """Every rule that fires on `raw`, in the order of RULES; other launchers' are left out."""
    return tuple(_fired(_rules_of(revision.framework), raw, revision))


def first_refusal(raw: RawSettings, revision: Revision) -> Finding | None:
    """What constructing TransformerConfig raises on `raw`; None where it accepts it."""
    return next(_fired(_refusals_of_the_config(), raw, revision), None)


@lru_cache(maxsize=1)
def _refusals_of_the_config() -> tuple[Rule, ...]:
    return tuple(
        rule
        for rule in RULES
        if rule.authority is Authority.CONFIG and rule.verdict is Verdict.REFUSED
    )


def _fired(rules: tuple[Rule, ...], raw: RawSettings, revision: Revision) -> Iterator[Finding]:
    for rule in rules:
        problem = rule.check(raw, revision)
        if problem is None:
            continue
        yield Finding(
            rule=rule.id,
            verdict=rule.verdict,
            authority=rule.authority,
            reason=problem.reason,
            fix=problem.fix,
            raises=problem.raises,
            source=rule.source or source_of(rule.id, revision),
        )


def check(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[Rejection, ...]:
    """Why no training comes of `setting` in `job`; empty for a legal setting."""
    return _rejections(setting, job_facts(job), revision)


def notes(setting: RecomputeSetting, job: Job, revision: Revision) -> tuple[str, ...]:
    """What is to be said of a legal setting: labels that act on nothing or buy nothing,
    promotions, what the environment must hold."""
    return _notes(setting, job_facts(job), revision)


def without_effect(
    setting: RecomputeSetting, job: Job, revision: Revision
) -> tuple[Rejection, ...]:
    """The parts of `setting` that Megatron accepts and ignores, as rejections."""
    found = _find(setting, job_facts(job), revision)
    return tuple(_rejection(setting, f) for f in found if f.verdict is Verdict.NO_EFFECT)


@lru_cache(maxsize=65536)
def _rejections(
    setting: RecomputeSetting, facts: JobFacts, revision: Revision
) -> tuple[Rejection, ...]:
    found = _find(setting, facts, revision)
    return tuple(_rejection(setting, finding) for finding in found if finding.verdict.illegal)


@lru_cache(maxsize=65536)
def _notes(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> tuple[str, ...]:
    found = _find(setting, facts, revision)
    return tuple(finding.reason for finding in found if not finding.verdict.illegal)


@lru_cache(maxsize=16384)
def _find(setting: RecomputeSetting, facts: JobFacts, revision: Revision) -> tuple[Finding, ...]:
    return find(lower(setting, facts, revision), revision)


def _rejection(setting: RecomputeSetting, finding: Finding) -> Rejection:
    breaks = finding.verdict in (Verdict.CRASHES, Verdict.HANGS)
    consequence = f" ({finding.verdict})" if breaks else ""
    return Rejection(
        setting=setting,
        rule=finding.rule,
        reason=finding.reason + consequence,
        fix=finding.fix,
        source=finding.source,
    )
