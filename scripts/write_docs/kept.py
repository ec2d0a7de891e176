"""What a layer of a real job keeps under each recompute setting, operator by operator."""

from functools import cache
from statistics import mode
from typing import Any, NamedTuple

from advisor.answer.evaluation import Evaluation
from advisor.api.answering import answer_to
from advisor.api.keywords import given_by, job_of
from advisor.layers.operators import LAYER_INPUT
from advisor.layers.transformer import transformer_layer
from advisor.plan.recompute_plan import kept_tensors, made, replayed_operators
from advisor.search.evaluate import Evaluator


class Row(NamedTuple):
    """One operator of the layer under one setting: bytes that it leaves for the backward, bytes of
    it that other settings keep and this one does not, and whether it runs a second time."""

    operator: str
    kept: int
    freed: int
    again: bool


class Column(NamedTuple):
    """One setting: its rows in the order in which the layer runs, and what the whole job takes."""

    setting: str
    rows: tuple[Row, ...]
    kept: int
    evaluation: Evaluation


@cache
def columns(model: str, gpus: str, settings: tuple[str, ...]) -> tuple[Column, ...]:
    """A column a setting, of the kind of layer that the job has most of."""
    given = given_by({"model": model, "gpus": gpus, "recompute": list(settings)})
    answer = answer_to(job_of(given)[0])
    found = {one.evaluation.setting.spec: one.evaluation for one in answer.candidates}
    layers = [_layer(found[setting]) for setting in settings]
    ever: dict[str, int] = {}
    for _, kept, _ in layers:
        ever |= kept
    return tuple(
        Column(setting, _rows(operators, kept, again, ever), sum(kept.values()), found[setting])
        for setting, (operators, kept, again) in zip(settings, layers, strict=True)
    )


def _layer(evaluation: Evaluation) -> tuple[Any, dict[str, int], frozenset[str]]:
    """Operators, bytes kept by storage, and names of the operators that run again."""
    evaluator = Evaluator(evaluation.job, evaluation.calibration)
    usual = mode(evaluation.job.model.layer_kinds)
    chunk = next(one for stage in evaluator.stages for one in stage if one.layers[-1:] == (usual,))
    segment = evaluator.plan(evaluation.setting, chunk.layers).segments[-1]
    operators = transformer_layer(evaluator.shape, usual)
    again = frozenset(one.name for one in replayed_operators(operators, segment.replay))
    if segment.whole:
        return operators, {LAYER_INPUT: evaluator.shape.hidden(LAYER_INPUT).num_bytes}, again
    kept = kept_tensors(operators, segment.runs)
    return operators, {name: tensor.num_bytes for name, tensor in kept.items()}, again


def _rows(
    operators: Any, kept: dict[str, int], again: frozenset[str], ever: dict[str, int]
) -> tuple[Row, ...]:
    rows = [Row(LAYER_INPUT, kept.get(LAYER_INPUT, 0), 0, False)]
    left = ever.keys() - {LAYER_INPUT}
    for operator in operators:
        names = {tensor.storage.name for tensor in made(operator)} & left
        left -= names  # a view has the storage of what an earlier operator wrote
        there = sum(kept.get(name, 0) for name in names)
        gone = sum(ever[name] for name in names if name not in kept)
        rows.append(Row(operator.name, there, gone, operator.name in again))
    return tuple(rows)
