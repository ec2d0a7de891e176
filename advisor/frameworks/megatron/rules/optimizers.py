"""What Megatron-LM's command line makes of --optimizer, muon and dist_muon first of all.

Sources: megatron-core 0.16.1 optimizer/muon.py and optimizer_config.py; wheels 0.17.1 to 0.19.2
training/arguments.py (validate_args).
"""

from typing import Final

from advisor.base.units import nearest_names
from advisor.frameworks.megatron.muon import FIRST_RELEASE
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.finding import Authority, Problem, Rule, Verdict

_ARGUMENTS: Final = "megatron-core 0.17.1 training/arguments.py:1483-1493"
_NEWER: Final = "megatron-core 0.19.2 training/arguments.py:1669-1682"
_PARSER: Final = "megatron-core 0.19.2 training/arguments.py:2776"
_CONFIG: Final = "megatron-core 0.16.1 optimizer/optimizer_config.py:375"
_FILE: Final = "megatron-core 0.16.1 optimizer/muon.py; absent from 0.15.3"
_FP16: Final = "megatron-core 0.16.1 optimizer/muon.py:195"


_CHOICES: Final = ("adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon")


def optimizer_choice(raw: RawSettings, revision: Revision) -> Problem | None:
    """A name that no release knows; lion came with 0.17, soap and adaptive_muon behind it."""
    if raw.optimizer in _CHOICES:
        return None
    return Problem(
        f"optimizer = {raw.optimizer}, which no release has",
        nearest_names(raw.optimizer, _CHOICES),
        "SystemExit: argument --optimizer: invalid choice",
    )


def muon_release(raw: RawSettings, revision: Revision) -> Problem | None:
    """muon and dist_muon came with megatron-core 0.16."""
    if not _muon(raw) or revision.at_least(*FIRST_RELEASE):
        return None
    return Problem(
        f"optimizer = {raw.optimizer}, which {revision.label} does not have",
        "use megatron-core 0.16 or newer, or optimizer adam",
        "SystemExit: argument --optimizer: invalid choice",
    )


def muon_distributed_optimizer(raw: RawSettings, revision: Revision) -> Problem | None:
    """Muon keeps tensors whole: no distributed optimizer up to 0.17."""
    sharded = _muon(raw) and raw.use_distributed_optimizer
    if not sharded or not revision.at_least(*FIRST_RELEASE) or revision.at_least(0, 18):
        return None
    return Problem(
        f"optimizer = {raw.optimizer} with use_distributed_optimizer",
        "drop --use-distributed-optimizer; dist_muon deals whole tensors to data-parallel ranks",
        "AssertionError: Muon optimizer does not support distributed optimizer for now.",
    )


def muon_becomes_layer_wise(raw: RawSettings, revision: Revision) -> Problem | None:
    """From 0.18 on muon with --use-distributed-optimizer is what dist_muon was."""
    sharded = raw.optimizer == "muon" and raw.use_distributed_optimizer
    if not sharded or not revision.at_least(0, 18):
        return None
    return Problem(
        "optimizer = muon with use_distributed_optimizer deals whole tensors to data-parallel "
        "ranks (the layer-wise distributed optimizer)",
        "nothing: dist_muon is its older name",
    )


def muon_overlap(raw: RawSettings, revision: Revision) -> Problem | None:
    """Plain muon up to 0.17 goes without overlapped reductions and gathers."""
    overlaps = raw.overlap_grad_reduce or raw.overlap_param_gather
    plain = raw.optimizer == "muon" and overlaps
    if not plain or not revision.at_least(*FIRST_RELEASE) or revision.at_least(0, 18):
        return None
    what = "grad reduce" if raw.overlap_grad_reduce else "param gather"
    return Problem(
        f"optimizer = muon with overlap_{what.replace(' ', '_')}",
        f"drop --overlap-{what.replace(' ', '-')}, or use dist_muon",
        f"AssertionError: Muon optimizer does not support overlap {what}.",
    )


def muon_precision_aware(raw: RawSettings, revision: Revision) -> Problem | None:
    """The precision-aware optimizer, and with it its offload, is Adam's alone."""
    if not _muon(raw) or not raw.use_precision_aware_optimizer:
        return None
    return Problem(
        f"use_precision_aware_optimizer with optimizer = {raw.optimizer}",
        "drop --use-precision-aware-optimizer, or use optimizer adam",
        "AssertionError: --use-precision-aware-optimizer only supported with adam",
    )


def muon_fp16(raw: RawSettings, revision: Revision) -> Problem | None:
    """Muon knows no loss scale: no fp16."""
    if not _muon(raw) or not raw.fp16:
        return None
    who = "ValueError: emerging optimizer" if revision.at_least(0, 18) else "Exception: muon"
    return Problem(
        f"optimizer = {raw.optimizer} with fp16", "use --bf16", f"{who} with fp16 is not supported."
    )


def _muon(raw: RawSettings) -> bool:
    return raw.optimizer in ("muon", "dist_muon")


RULES: Final = (
    Rule("optimizer_choice", Verdict.REFUSED, Authority.LAUNCHER, optimizer_choice, _PARSER),
    Rule("muon_release", Verdict.REFUSED, Authority.LAUNCHER, muon_release, _FILE),
    Rule(
        "muon_distributed_optimizer",
        Verdict.REFUSED,
        Authority.LAUNCHER,
        muon_distributed_optimizer,
        _ARGUMENTS,
    ),
    Rule(
        "muon_becomes_layer_wise", Verdict.NOTE, Authority.LAUNCHER, muon_becomes_layer_wise, _NEWER
    ),
    Rule("muon_overlap", Verdict.REFUSED, Authority.LAUNCHER, muon_overlap, _ARGUMENTS),
    Rule(
        "muon_precision_aware", Verdict.REFUSED, Authority.LAUNCHER, muon_precision_aware, _CONFIG
    ),
    Rule("muon_fp16", Verdict.REFUSED, Authority.LAUNCHER, muon_fp16, _FP16),
)
