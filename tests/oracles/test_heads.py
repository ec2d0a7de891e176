"""Heads of other packages: what they keep, to the byte, and the peaks of either pass.

Those of wheels are recorded (data/heads.json, by heads/record.py, with each wheel's version); the
others run here: transformers' own, and prime-rl's, slime's and NeMo-RL's, which have no wheel, as
they are written after their sources in heads/programs.py.
"""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.job.loss_head import HeadImplementation, LossHead
from advisor.job.tuning import Tuning
from advisor.layers.heads.implementations import HEADS
from advisor.layers.operators import Module, Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_groups
from advisor.memory.events import fold
from advisor.memory.liveness import events_without_grad, footprint
from advisor.models.options import TransformerImpl

from .heads.measured import CASES, SIZES, Case
from .heads.record import DATA, WHEELS
from .stacks.shapes import LLAMA3_8B

TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %. What is kept is equal to the byte."""
RECORDED = json.loads(DATA.read_text())
HERE = ("transformers", "slime", "nemo_rl", "prime_rl", "prime_rl_logits")


def _shape(name: HeadImplementation, case: Case) -> RankShape:
    samples, length, hidden, vocabulary = SIZES[case.size]
    eager = name not in HEADS or HEADS[name].eager
    model = replace(
        LLAMA3_8B,
        hidden_size=hidden,
        vocab_size=vocabulary,
        make_vocab_size_divisible_by=1,
        gradient_accumulation_fusion=False,
        transformer_impl=TransformerImpl.TRANSFORMERS if eager else TransformerImpl.LOCAL,
    )
    return RankShape(
        model=model,
        seq_length=length,
        micro_batch_size=samples,
        head=LossHead(implementation=name, **case.changed),
        tuning=Tuning(freeze_output=case.frozen),
    )


def _operators(shape: RankShape) -> tuple[Operator, ...]:
    """After the final norm."""
    operators = (one for _, group in head_groups(shape) for one in group)
    return tuple(one for one in operators if one.module is not Module.FINAL_LAYERNORM)


def _assert_same(name: HeadImplementation, case: Case, measured: list[int]) -> None:
    shape = _shape(name, case)
    operators = _operators(shape)
    found, (kept, forward, backward, alone) = footprint(operators, ()), measured
    assert found.kept == kept
    # a variable of the program may hold the hidden states next to all logits
    held = operators[0].inputs[0].num_bytes if name in _WHOLE else 0
    most = forward - held if case.frozen and held else forward
    assert most * (1 - TOLERANCE) <= found.forward.num_bytes <= forward * (1 + TOLERANCE)
    assert found.backward.num_bytes == pytest.approx(backward, rel=TOLERANCE)
    if name in _WITHOUT_GRAD:
        peak = fold(events_without_grad(operators)).peak.num_bytes
        assert peak * (1 - TOLERANCE) <= alone <= (peak + held) * (1 + TOLERANCE)


_WHOLE = {*(name for name, head in HEADS.items() if head.of_logits), "transformers"}
_WITHOUT_GRAD = {*RECORDED, *HERE} - {"liger_grpo", "liger_preference"}
"""Of Liger's two the part without gradients is another program."""


@pytest.mark.parametrize("case", map(str, CASES))
@pytest.mark.parametrize("name", WHEELS)
def test_heads_of_wheels(name: str, case: str) -> None:
    assert RECORDED[name]["wheel"] == WHEELS[name]
    (chosen,) = (one for one in CASES if str(one) == case)
    _assert_same(HeadImplementation(name), chosen, RECORDED[name]["cases"][case])


@pytest.mark.parametrize("case", CASES[::2], ids=str)
@pytest.mark.parametrize("name", HERE)
def test_heads_here(name: str, case: Case) -> None:
    pytest.importorskip("transformers")
    from .heads.measured import measure

    chosen = HeadImplementation(name)
    _assert_same(chosen, case, list(measure(chosen, case, Path())))


def test_at_least_twelve() -> None:
    assert len({*RECORDED, *HERE}) >= 12
