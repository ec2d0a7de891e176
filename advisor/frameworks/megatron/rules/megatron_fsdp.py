"""What Megatron-FSDP cannot be combined with."""

from functools import partial
from typing import Final

from advisor.frameworks.megatron.rules.stated import Authority, Rule, arguments, clash, noted

_refused = partial(clash, "use_megatron_fsdp", authority=Authority.LAUNCHER)

RULES: Final[dict[str, Rule]] = {
    "fsdp_checkpoint": _refused(
        "ckpt_format!=fsdp_dtensor", "[ckpt_format=fsdp_dtensor]", source=arguments(0, 1142, 1146)
    ),
    "fsdp_optimizer": _refused(
        "optimizer=muon|dist_muon|lion|soap|adaptive_muon",
        "[optimizer=adam], or [use_megatron_fsdp]",
        source=arguments(1492, 1123, 1120),
    ),
    "fsdp_host_optimizer": noted(
        when=lambda raw, _: raw.use_megatron_fsdp and raw.optimizer_cpu_offload,
        reason="optimizer_cpu_offload is predicted without effect on memory with use_megatron_fsdp",
        fix="nothing to change",
        source="advisor",
        example="use_megatron_fsdp=true use_precision_aware_optimizer=true "
        "optimizer_cpu_offload=true",
    ),
}
