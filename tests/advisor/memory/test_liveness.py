"""Walks over three operators whose sizes are powers of ten: every digit names a tensor."""

import pytest

from advisor.layers.operators import Module, Operator
from advisor.layers.transformer import transformer_layer
from advisor.memory.events import Peak, fold
from advisor.memory.liveness import footprint, walk_forward
from advisor.plan.recompute_plan import ReplayRun, kept_tensors
from tests.advisor.toys import GPT, A, B, C, D, operator, toy_shape

FIRST, SECOND, THIRD = Module.INPUT_LAYERNORM, Module.LINEAR_FC1, Module.LINEAR_FC2


def chain(**of_second: object) -> tuple[Operator, ...]:
    """a -> b -> c -> d; every operator keeps its input."""
    return (
        operator("first", (A,), (B,), saved=(A,), module=FIRST),
        operator("second", (B,), (C,), saved=(B,), module=SECOND, **of_second),
        operator("third", (C,), (D,), saved=(C,), module=THIRD),
    )


def test_forward_ends_with_everything_kept_and_the_output() -> None:
    result = footprint(chain(), ())
    assert result.kept == 111
    assert result.forward == Peak(1111, "third")


def test_backward_frees_what_each_operator_kept() -> None:
    """third: 111 kept, dD and dC; then c, dD are gone, second needs dC and dB."""
    result = footprint(chain(), ())
    assert result.backward == Peak(111 + 1000 + 100, "backward of third")
    assert result.held_backward == result.backward


def test_workspaces_count_while_their_operator_runs() -> None:
    result = footprint(chain(forward_workspace=5000, backward_workspace=7000), ())
    assert result.forward == Peak(111 + 5000, "second")
    assert result.backward == Peak(1 + 10 + 100 + 10 + 7000, "backward of second")
    assert result.held_backward == Peak(1121 + 7000, "backward of second")


def test_a_forward_that_keeps_nothing_frees_after_the_last_reader() -> None:
    assert fold(walk_forward(chain(), {}).events).peak == Peak(1100, "third")
    variables = chain(forward_holds=(A,))
    assert fold(walk_forward(variables, {}).events).peak == Peak(1100, "third")
    held = (*chain()[:2], operator("third", (C,), (D,), forward_holds=(A, B)))
    assert fold(walk_forward(held, {}).events).peak == Peak(1111, "third")


def test_a_replay_keeps_its_output_and_the_incoming_gradient_to_its_end() -> None:
    """Kept: a, b. Before third's backward c and d are made again."""
    run = ReplayRun(frozenset({SECOND, THIRD}), extra_kept_bytes=4)
    result = footprint(chain(), (run,))
    assert result.kept == 1 + 10 + 4
    # b (kept) c d again, dD, dC; d stays while second runs, and so does dD
    assert result.backward == Peak(4 + 1 + 1110 + 1000 + 100, "backward of third")
    assert footprint(chain(backward_workspace=9000), (run,)).backward == Peak(
        4 + 1 + 10 + 1000 + 1000 + 100 + 10 + 9000, "backward of second"
    )


def test_a_replay_can_be_the_peak_itself() -> None:
    run = ReplayRun(frozenset({SECOND, THIRD}))
    result = footprint(chain(forward_workspace=9000), (run,))
    assert result.backward == Peak(1 + 10 + 100 + 1000 + 9000, "replay of second")


@pytest.mark.parametrize("copies", [True, False])
def test_a_discarded_output_comes_back_twice_unless_it_shares_its_storage(copies: bool) -> None:
    """The storage that second reads and the replay's own output, both until second is done; once
    until first, which the checkpoint is around, is done."""
    how = {"discards_output": True, "replayed_before": THIRD, "copies_output": copies}
    run = ReplayRun(frozenset({FIRST}), **how)
    result = footprint(chain(), (run,))
    assert result.kept == 101
    assert result.backward == Peak(101 + 10 * (1 + copies) + 1000 + 100, "backward of third")
    without = footprint(chain(backward_workspace=9000), ()).backward.num_bytes
    with_run = footprint(chain(backward_workspace=9000), (run,)).backward.num_bytes
    assert with_run == without + 10 * copies


def test_every_walk_of_a_layer_ends_where_it_began() -> None:
    """A peak is at least what is kept, and the held peak exceeds it by at most one gradient."""
    for shape in (toy_shape(), toy_shape(GPT), toy_shape(transformer_impl="transformer_engine")):
        layer = transformer_layer(shape)
        result = footprint(layer, ())
        assert result.kept == sum(t.num_bytes for t in kept_tensors(layer, ()).values())
        assert result.forward.num_bytes >= result.kept
        assert result.backward.num_bytes >= result.kept
        gap = result.held_backward.num_bytes - result.backward.num_bytes
        assert 0 <= gap <= shape.hidden("x").num_bytes
