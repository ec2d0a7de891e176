"""A snapshot in the form of torch's CUDA allocator, small enough to add up by hand.

No GPU made it: keys, actions and states are those of pytorch torch/csrc/cuda/Module.cpp
(torch_cuda_memorySnapshot) and torch 2.13 cuda/memory.py.
"""

from typing import Any

FORWARD = [
    {"filename": "/job/model.py", "line": 3, "name": "forward"},
    {"filename": "/job/train.py", "line": 9, "name": "<module>"},
]
BACKWARD = [{"filename": "/lib/torch/autograd/graph.py", "line": 1, "name": "_engine_run_backward"}]
OPTIMIZER = [{"filename": "/lib/torch/optim/adam.py", "line": 1, "name": "step"}]
BASE = 0x7F0000000000


def event(action: str, place: int, size: int, micros: int, frames: Any = None) -> dict[str, Any]:
    return {
        "action": action,
        "addr": BASE + place,
        "size": size,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + micros,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames or [],
    }


def block(place: int, size: int, state: str) -> dict[str, Any]:
    held = state.startswith("active")
    return {
        "address": BASE + place,
        "size": size,
        "requested_size": size - 12 if held else 0,
        "state": state,
        "frames": [],
    }


def recorded_by_hand() -> dict[str, Any]:
    """Weights of 1012 bytes were there before and stay; 500 bytes more are freed first."""
    trace = [
        event("free_requested", 2048, 500, 0),
        event("free_completed", 2048, 500, 1),
        event("alloc", 2048, 300, 1_000_000, FORWARD),
        event("segment_alloc", 4096, 2 << 20, 1_000_001),
        event("alloc", 4096, 4000, 1_500_000, BACKWARD),
        event("free_requested", 2048, 300, 1_600_000),
        event("alloc", 3072, 700, 1_600_000, OPTIMIZER),  # before the one above is completed
        event("free_completed", 2048, 300, 1_700_000),
        event("free_requested", 4096, 4000, 1_800_000),
        event("free_completed", 4096, 4000, 1_800_000),
        {"action": "oom", "size": 1 << 40, "device_free": 5, "frames": [], "stream": 0},
        {"action": "snapshot", "size": 0, "frames": [], "stream": 0},
    ]
    blocks = [
        block(0, 1024, "active_allocated"),
        block(1024, 2048, "inactive"),
        block(3072, 712, "active_allocated"),
        block(3784, 100, "active_pending_free"),
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 3884,
        "allocated_size": 1736,
        "active_size": 1836,
        "requested_size": 1712,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    emptied = segment | {
        "address": BASE + 4096,
        "total_size": 2 << 20,
        "blocks": [block(4096, 2 << 20, "inactive")],
    }
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "garbage_collection_threshold": 0.0}
    return {
        "segments": [segment, emptied],
        "device_traces": [trace, []],
        "allocator_settings": settings,
        "external_annotations": [],
    }
