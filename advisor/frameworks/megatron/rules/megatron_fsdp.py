"""What Megatron-FSDP cannot be combined with."""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import stated


def _overlapped(raw: RawSettings, revision: Revision) -> bool:
    return raw.use_megatron_fsdp and revision.at_least(0, 18)


RULES: Final = stated(
    "megatron_fsdp", fsdp_overlap_graphs=_overlapped, fsdp_overlap_double_buffer=_overlapped
)
