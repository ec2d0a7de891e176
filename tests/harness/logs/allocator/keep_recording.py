"""Keeps a recording of tests/gpu/recorded_step.py here: python keep_recording.py FOLDER NAME."""

import gzip
import json
import pickle
import sys
from pathlib import Path
from typing import Any

KEPT = (
    *("allocated_bytes.all.peak", "allocation.all.peak", "allocation.large_pool.peak"),
    *("requested_bytes.all.current", "requested_bytes.all.peak", "reserved_bytes.all.peak"),
)
HERE = Path(__file__).parent
PROJECT = str(Path(__file__).parents[4])


def shorten(snapshot: dict[str, Any]) -> None:
    """Paths as they are on no machine; frames stay shared."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    events = [event for trace in snapshot["device_traces"] for event in trace]
    for one in (*blocks, *snapshot["segments"], *events):
        for frame in one.get("frames", ()):
            path = frame["filename"].replace(PROJECT, "/job")
            frame["filename"] = path.rpartition("site-packages")[2] or path
            if "python-build" in path:
                frame["filename"] = Path(path).name


def main(folder: Path, name: str) -> None:
    snapshot = pickle.loads((folder / "rank0.pickle").read_bytes())
    shorten(snapshot)
    packed = gzip.compress(pickle.dumps(snapshot, protocol=4), mtime=0)
    (HERE / f"{name}.pickle.gz").write_bytes(packed)
    counted = json.loads((folder / "counted.json").read_text())
    kept = {key: counted[key] for key in KEPT}
    (HERE / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
