"""The option of torch's caching allocator that an environment sets."""

from collections.abc import Mapping
from typing import Final

from advisor.base.place import Place
from advisor.reading.read_configuration import ReadValue

EXPANDABLE_SEGMENTS: Final = "job.expandable_segments"
_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""The name of new releases goes before the old one, HIP's after CUDA's, which ROCm reads as well
(torch 2.13 c10/cuda/CUDAAllocatorConfig.h)."""
_ON: Final = "expandable_segments:True"


def expandable_segments(environment: Mapping[str, tuple[str, Place]]) -> ReadValue | None:
    """Whether segments expand, by texts and places of variables; None where none is set or its
    text is not known."""
    for name in _NAMES:
        if name in environment:
            text, place = environment[name]
            return None if "$" in text else ReadValue(value=_ON in text, written=name, place=place)
    return None
