"""Single ranks of a job, alone on one device or on fake tensors, by Megatron Core's own layers.
torch and megatron-core are loaded by `lone_ranks` alone."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from advisor.base.errors import install_hint
from harness.backends.megatron_core import installed
from harness.backends.megatron_core.translate import megatron_case, runs_transformer_engine
from harness.trial.trial import Device, Workload

if TYPE_CHECKING:
    from harness.backends.megatron_core.rehearsal.rank import MegatronRanks

require: Final = installed.require_megatron
as_installed: Final = installed.under_installed
check: Final = megatron_case
computes_in_8_bits: Final = runs_transformer_engine


def lacking() -> tuple[str, str] | None:
    """That packages are needed which are not installed, and how to get them; None where none is."""
    packages = installed.missing()
    return (f"needs {packages}", install_hint("megatron")) if packages else None


def lone_ranks(workload: Workload) -> "MegatronRanks":
    """The first ranks of the stages of `workload`, one at a time; UserError for what is not run."""
    with nullcontext() if workload.device is Device.CUDA else installed.nothing_compiled():
        from harness.backends.megatron_core.rehearsal.rank import MegatronRanks
    return MegatronRanks(workload, megatron_case(workload))
