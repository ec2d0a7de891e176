"""Options that Megatron does not read next to others, or obeys and no prediction knows of."""

import re
from functools import partial
from typing import Any, Final

from advisor.base.rule import Verdict
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.rules.stated import Rule, ignored, noted
from advisor.frameworks.option import Option, Status

_ON_TIME: Final = re.compile(
    r"tp_comm_|high_priority|muon_|.*(_num_sms|_p2p|backend|order|batch_size|zeros_in_grad)|reset_"
    r"|barrier|use_sharp|clip_grad|nccl_comm|use_tp_pp_dp|async_tensor|scatter_gather|empty_unused"
    r"|overlap_param_gather_with|use_torch_optimizer|use_checkpoint_args|use_layer_wise"
)
"""Options on the time or the first steps alone, or read elsewhere."""
_UNPRICED: Final = {n: row for n, row in SETTINGS.items() if row.status is Status.UNPRICED}
_UNTIMED: Final = {n: _UNPRICED.pop(n) for n in [*_UNPRICED] if _ON_TIME.match(n)}
_REFUSED: Final = {n: row for n, row in SETTINGS.items() if row.status is Status.REFUSED}


def _with_notes(raw: RawSettings, rows: dict[str, Option]) -> str:
    """The options of `rows` that are set, each with what is to be said of it."""
    names = sorted(raw.given.keys() & rows.keys())
    said = {n: v for n, v in raw.given.items() if "megatron.core." not in str(v)}  # as a spec
    found = (rows[n] for n in names if said.get(n, rows[n].default) != rows[n].default)
    return "; ".join(f"{row.name} ({row.note})" for row in found)


def _naming(summary: str, rows: dict[str, Option], example: str, **rest: Any) -> Rule:
    """A rule that names those of `rows` that are set."""
    usual = {"verdict": Verdict.NOT_MODELLED, "reason": "predictions do not include {found}"}
    fix, source = "measure what it does, or predict without it", "docs/options.md"
    when = partial(lambda rows, raw, _: _with_notes(raw, rows), rows)
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
        "Names options of jobs that the advisor cannot describe.",
        _REFUSED,
        "sft=true",
        reason="predictions do not cover a job with {found}",
    ),
    "untimed_options": _naming(
        "Names options on time alone that are not modelled.",
        _UNTIMED,
        "use_sharp=true",
        verdict=Verdict.NOTE,
    ),
    "unpriced_options": _naming(
        "Names options that change memory or step time and are not modelled.",
        _UNPRICED,
        "qk_clip=true",
    ),
}
