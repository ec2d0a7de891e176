"""What chunks of short sequences need, exact to the byte: of several kinds of layers and of every
way to keep what they save. The rows hold the walks still, whose sources other tests and
tests/oracles check; where one is meant to change, its rows change with it, one by one."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.operators import Module
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory.chunk import AttentionMask, ChunkFootprint, chunk_footprint
from advisor.memory.overlap import more_in_turns
from advisor.plan.recompute_plan import (
    ON_HOST,
    Checkpoint,
    InputStorage,
    RecomputePlan,
    ReplayRun,
    Segment,
    merged,
)
from tests.advisor.layers.test_sums import shape_of

with Path(__file__).with_name("chunk_sums.csv").open(encoding="utf-8") as _file:
    ROWS = list(csv.DictReader(_file))
ATTENTION = frozenset({Module.LINEAR_QKV, Module.ROTARY, Module.CORE_ATTENTION})
ACTIVATIONS = frozenset({Module.ACTIVATION, Module.EXPERT_ACTIVATION, Module.ROUTER})
MLP = frozenset({Module.PRE_MLP_LAYERNORM, Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2})
HOOKS, EARLY = {"checkpoint": Checkpoint.NON_REENTRANT}, {"checkpoint": Checkpoint.EARLY_STOP}
WAYS: dict[str, dict[str, Any]] = {
    "all kept": {},
    "modules offloaded": {"offloaded": ATTENTION},
    "one checkpoint": {"whole": True, "shards_input": True},
    "one by hooks": {"whole": True, **HOOKS},
    "one that stops early": {"whole": True, **EARLY},
    "one that waits on the host": {"whole": True, "input": ON_HOST},
    "one with a copy": {"whole": True, "input": InputStorage(offloaded=True, more=1), **HOOKS},
    "attention": {"runs": (ReplayRun(ATTENTION, extra_kept_bytes=3),)},
    "attention by hooks": {"runs": (ReplayRun(ATTENTION, **HOOKS),)},
    "mlp": {"runs": (ReplayRun(MLP, **EARLY),)},
    "mlp on the host": {"runs": (ReplayRun(MLP, **HOOKS, offloads=frozenset({LAYER_INPUT})),)},
    "activations": {"runs": (ReplayRun(ACTIVATIONS),)},
    "output": {
        "runs": (ReplayRun(MLP, discards_output=True, replayed_before=Module.INPUT_LAYERNORM),)
    },
    "norm's output": {
        "runs": (
            ReplayRun(
                frozenset({Module.PRE_MLP_LAYERNORM}),
                discards_output=True,
                copies_output=False,
                replayed_before=Module.LINEAR_FC1,
            ),
        )
    },
}


def found(shape: RankShape, way: str, each: int, ends: bool) -> tuple[ChunkFootprint, int]:
    """Of the first and the last layers of a chunk, `each` by each; and what overlap adds."""
    ((chunk,),) = pipeline_stages(shape.model, ParallelLayout())
    layers = chunk.layers[:4] + chunk.layers[-2:]
    groups = [layers[number : number + each] for number in range(0, len(layers), each)]
    plan = RecomputePlan(merged(Segment(group, **WAYS[way]) for group in groups))
    footprint = chunk_footprint(shape, plan, ends, ends, AttentionMask(1000, 3000))
    return footprint, more_in_turns(shape, (plan,), delayed=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(list(row.values())[:5]))
def test_bytes_of_a_chunk(row: dict[str, str]) -> None:
    shape = shape_of(row["model"], json.loads(row["changes"]))
    footprint, beside = found(shape, row["way"], int(row["each"]), row["ends"] == "yes")
    numbers = (footprint.kept, footprint.forward.num_bytes, footprint.backward.num_bytes)
    columns = ("kept", "forward", "backward", "left", "overlap")
    assert (*numbers, footprint.left, beside) == tuple(int(row[name]) for name in columns)
    assert (footprint.forward.point, footprint.backward.point) == (row["there"], row["back"])
