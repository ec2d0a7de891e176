"""Labels, promotions and rules of a release of Megatron, for `advise rules`."""

from collections.abc import Iterator

from advisor.frameworks.megatron.revisions import Revision, checkpoint_kind
from advisor.frameworks.megatron.rules import rules_in_force
from advisor.frameworks.part_types import RulesOverview


def overview(revision: Revision) -> RulesOverview:
    """Every rule in force in `revision`, by verdict and authority, and those about the GPU."""
    from advisor.frameworks.megatron.rules.hardware import HARDWARE_RULES

    rules = rules_in_force(revision).items()
    hardware = (("GPU: refused", name, r.summary) for name, r in HARDWARE_RULES.items())
    by_verdict = ((f"{r.authority}: {r.verdict}", name, r.summary) for name, r in rules)
    return RulesOverview(
        label=revision.label, facts=tuple(_labels(revision)), rules=(*by_verdict, *hardware)
    )


def _labels(revision: Revision) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[str]] = {}
    for module in revision.recompute_modules:
        kinds.setdefault(checkpoint_kind(module).replace("_", "-"), []).append(module)
    yield (
        "recompute modules",
        "; ".join(f"{k}: {' '.join(m)}" for k, m in kinds.items())
        or "none: selective recomputes core attention",
    )
    yield "offload modules", " ".join(revision.offload_modules) or "none"
    impls = " ".join(revision.cuda_graph_impls) or "enable_cuda_graph, external_cuda_graph"
    yield (
        "CUDA graphs",
        f"{impls}; {revision.cuda_graph_field}: "
        + (" ".join(revision.cuda_graph_modules) or "none"),
    )
    yield "replacements", "; ".join(revision.promotions)
