"""Options that Megatron does not read next to others, or obeys and no prediction knows of."""

from functools import partial
from typing import Any, Final

from advisor.base.rule import Verdict
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import Rule, ignored, noted
from advisor.frameworks.option import Option, Status


def _with_notes(status: Status, raw: RawSettings, _: Revision) -> str:
    """The options of a status that are set, each with what is to be said of it."""
    given = ((SETTINGS[name], value) for name, value in sorted(raw.given.items()))
    found = [row for row, value in given if row.status is status and _differs(row, value)]
    return "; ".join(f"{row.name} ({row.note})" for row in found)


def _differs(row: Option, value: object) -> bool:
    return value != row.default and "megatron.core." not in str(value)  # its own spec


def _naming(status: Status, summary: str, example: str, **rest: Any) -> Rule:
    """A rule that names the options of a status that are set."""
    usual = {"verdict": Verdict.NOT_MODELLED, "reason": "predictions do not include {found}"}
    fix, source = "measure what it does, or predict without it", "docs/options.md"
    when = partial(_with_notes, status)
    return noted(
        summary=summary, when=when, example=example, fix=fix, source=source, **usual | rest
    )


RULES: Final[dict[str, Rule]] = {
    "flex_backend_unread": ignored(
        summary="moe_flex_dispatcher_backend is used only by the flex dispatcher.",
        given=lambda raw, revision: raw.has_experts and revision.at_least(0, 16),
        when=lambda raw, _: (
            raw.moe_token_dispatcher_type != "flex"
            and raw.moe_flex_dispatcher_backend not in ("", "deepep")
        ),
        reason="moe_flex_dispatcher_backend {raw.moe_flex_dispatcher_backend} is used only by "
        "the flex dispatcher",
        fix="[moe_token_dispatcher_type=flex], or [moe_flex_dispatcher_backend]",
        source="megatron-core 0.16.1 moe/token_dispatcher.py:1347, 0.19.2 :1769",
        example="num_moe_experts=8 moe_flex_dispatcher_backend=hybridep",
    ),
    "graph_modules_unread": ignored(
        summary="The modules of CUDA graphs are used only with cuda_graph_impl.",
        given=lambda raw, revision: not graphs_of(raw, revision).on,
        when=lambda raw, revision: graphs_of(raw, revision).modules,
        reason="{revision.cuda_graph_field} {found} without cuda_graph_impl captures nothing",
        fix="[cuda_graph_modules], or set cuda_graph_impl",
        source="megatron-core 0.19.2 transformer_config.py:2464",
        example="cuda_graph_modules=attn",
    ),
    "untimed_delay": noted(
        when=lambda raw, _: raw.delay_wgrad_compute and raw.overlap_moe_expert_parallel_comm,
        reason="the effect of delay_wgrad_compute on step time is not predicted",
        fix="nothing to change",
        source="docs/times.md",
        example="overlap_moe_expert_parallel_comm=true delay_wgrad_compute=true",
    ),
    "refused_options": _naming(
        Status.REFUSED,
        "Names options of jobs that the advisor cannot describe.",
        "sft=true",
        reason="predictions do not cover a job with {found}",
    ),
    "untimed_options": _naming(
        Status.UNTIMED,
        "Names options on time alone that are not modelled.",
        "use_sharp=true",
        verdict=Verdict.NOTE,
    ),
    "unpriced_options": _naming(
        Status.UNPRICED,
        "Names options that change memory or step time and are not modelled.",
        "qk_clip=true",
    ),
}
