"""What a layer of each kind and the ends of the model add up to, exact: bytes, FLOPs and kernels of
small sequences, of so many variants that each formula of the layers is in one of them.

No model of these sums is known elsewhere: they hold the formulae still, whose sources the other
tests and tests/oracles check. Where one is meant to change, its rows change with it, one by one.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.fields import convert, field_types
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import embedding_operators, head_groups, transformer_layer
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from tests.advisor.toys import saved_bytes

with Path(__file__).with_name("sums.csv").open(encoding="utf-8") as _file:
    ROWS = list(csv.DictReader(_file))


def _fields(cls: type[Struct], changes: dict[str, Any]) -> dict[str, Any]:
    """Those of the changes that are fields of `cls`, in its types."""
    types = field_types(cls)
    return {key: convert(changes[key], types[key], "", key) for key in changes if key in types}


def shape_of(model: str, changes: dict[str, Any]) -> RankShape:
    """Two sequences of 64 tokens on one rank."""
    found = load_model(model)
    found = replace(found, **_fields(ModelSpec, changes))
    fields = {"seq_length": 64, "micro_batch_size": 2} | _fields(RankShape, changes)
    return RankShape(model=found, **fields)


def sums(shape: RankShape) -> dict[str, int]:
    """By the columns of sums.csv."""
    ((chunk,),) = pipeline_stages(shape.model, ParallelLayout())
    groups = [transformer_layer(shape, kind) for kind in dict.fromkeys(chunk.layers)]
    groups += [embedding_operators(shape), *(operators for _, operators in head_groups(shape))]
    every: list[Operator] = [operator for operators in groups for operator in operators]
    return {
        "saved": sum(sum(saved_bytes(operators).values()) for operators in groups),
        "forward_bytes": sum(one.forward_bytes for one in every),
        "backward_bytes": sum(one.backward_bytes for one in every),
        "forward_flops": sum(one.forward_flops for one in every),
        "forward_workspace": sum(one.forward_workspace for one in every),
        "backward_workspace": sum(one.backward_workspace for one in every),
        "second_stream": sum(one.second_stream_bytes for one in every),
        "weight_gradients": sum(one.weight_gradient_bytes for one in every),
        "narrow_gradients": sum(one.narrow_weight_gradient_bytes for one in every),
        "sent_forward": sum(c.num_bytes for one in every for c in one.forward_collectives),
        "sent_backward": sum(c.num_bytes for one in every for c in one.backward_collectives),
        "kernels_forward": sum(one.forward_kernels for one in every),
        "kernels_backward": sum(one.backward_kernels for one in every),
        "weights": sum(weight.num_elements for one in every for weight in one.weights),
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']} {row['changes']}")
def test_sums_of_a_variant(row: dict[str, str]) -> None:
    found = sums(shape_of(row["model"], json.loads(row["changes"])))
    assert {name: str(value) for name, value in found.items()} == {
        name: row[name] for name in found
    }
