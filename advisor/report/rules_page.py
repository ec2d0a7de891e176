"""The pages of `advise rules`: what a release accepts, promotes and refuses."""

from collections.abc import Iterator

from rich.console import Group, RenderableType

from advisor.base.errors import UserError
from advisor.frameworks.megatron.revisions import Revision, checkpoint_kind
from advisor.frameworks.megatron.rules import RULES, Rule
from advisor.frameworks.megatron.rules.engine import in_force
from advisor.frameworks.torch.adapter import TorchStack
from advisor.frameworks.torch.rule_catalogue import known_rules
from advisor.job.job import Framework, Job
from advisor.plan.recompute_plan import recomputes
from advisor.report.text import beside, indented

_MARGIN = 18


def rules_page(revision: Revision, word: str = "") -> RenderableType:
    """The labels and promotions of `revision` and every rule in force in it.

    word: only rules whose name, summary or authority has it; UserError where none has.
    """
    rules = [rule for rule in RULES if in_force(rule, revision) and word.lower() in _text(rule)]
    if not rules:
        raise UserError(
            "rules", word, f"is in no rule of {revision.label}", "advise rules lists them all"
        )
    parts: list[RenderableType] = [] if word else ["", beside(_labels(revision), margin=_MARGIN)]
    for verdict, authority in dict.fromkeys((rule.verdict, rule.authority) for rule in rules):
        of_kind = [r for r in rules if (r.verdict, r.authority) == (verdict, authority)]
        summaries = beside((rule.id, rule.summary) for rule in of_kind)
        parts += ["", f"{verdict}, by {authority} ({len(of_kind)})", indented(summaries, 2)]
    return Group(f"{revision.label}: {len(rules)} rules", *parts)


def stack_rules_page(stack: TorchStack, job: Job, word: str = "") -> RenderableType:
    """What the release of a PyTorch stack takes, and every rule of it with an example of a setting
    that it refuses; `word` as above."""
    rules = [
        rule
        for rule in known_rules(stack, job)
        if word.lower() in f"{rule.rule} {rule.reason} {rule.source} refused".lower()
    ]
    label = f"{stack.label} {job.config.framework_version}"
    if not rules:
        raise UserError("rules", word, f"is in no rule of {label}", "advise rules lists them all")
    parts: list[RenderableType] = [] if word else ["", beside(_takes(stack), margin=_MARGIN)]
    for one in rules:
        example = f"{one.setting.spec}: " if recomputes(one.setting) else ""
        parts += ["", one.rule, indented(f"{example}{one.reason} ({one.source})", 2)]
    return Group(f"{label} refuses by {len(rules)} rules", *parts)


def _takes(stack: TorchStack) -> Iterator[tuple[str, str]]:
    yield "granularities", " ".join(stack.granularities)
    yield "op:", " ".join(stack.policies) or "none"
    yield "options", " ".join(f"+{option}" for option in stack.options) or "none"
    yield "sharding", " ".join(stack.shardings)
    degrees = (
        "TP, EP, data parallel" if stack.framework is Framework.TORCHTITAN else "data parallel"
    )
    yield "jobs", f"bf16, dense models and experts, {degrees}"


def _text(rule: Rule) -> str:
    return f"{rule.id} {rule.summary} {rule.authority} {rule.verdict}".lower()


def _labels(revision: Revision) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[str]] = {}
    for module in revision.recompute_modules:
        kinds.setdefault(checkpoint_kind(module).replace("_", "-"), []).append(module)
    yield (
        "recompute modules",
        "; ".join(f"{k}: {' '.join(m)}" for k, m in kinds.items())
        or ("no list: selective is core attention"),
    )
    yield "offload modules", " ".join(revision.offload_modules) or "none"
    impls = " ".join(revision.cuda_graph_impls) or "enable_cuda_graph, external_cuda_graph"
    yield (
        "CUDA graphs",
        f"{impls}; {revision.cuda_graph_field}: "
        + (" ".join(revision.cuda_graph_modules) or "none"),
    )
    yield "promotions", "; ".join(revision.promotions)
