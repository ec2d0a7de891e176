from advisor.base.dtypes import DType
from advisor.layers.operators import Tensor
from advisor.memory.arena import Arena, Gradients
from advisor.memory.events import GIVE, TAKE, Peak, fold, highest
from tests.advisor.toys import A, B, C, D, operator


def test_an_arena_counts_each_storage_once() -> None:
    arena = Arena()
    arena.store(C)
    arena.store(C.view("part", (5,)))
    arena.add("c", 40)  # smaller than what is there
    assert arena.live == 100
    arena.add("c", 150)
    assert arena.live == 150
    arena.drop("c")
    arena.drop("c")
    assert arena.live == 0


def received(tensor: Tensor) -> tuple[Arena, Gradients]:
    arena = Arena()
    gradients = Gradients(arena)
    gradients.receive(tensor)
    return arena, gradients


def test_the_peak_is_the_highest_mark() -> None:
    arena = Arena()
    arena.store(B)
    arena.mark("workspace", 5)
    arena.store(C)
    arena.mark("more")
    arena.drop("c")
    arena.mark("less")
    assert fold(arena.events).peak == Peak(110, "more")
    assert highest(Peak(5, "x"), Peak(5, "y")) == Peak(5, "x")


def test_an_incoming_gradient_that_the_caller_keeps_counts_to_the_end() -> None:
    arena, gradients = received(C)
    gradients.step(operator("last", (B,), (C,)))
    gradients.step(operator("first", (D,), (B,)))
    assert fold(arena.events).peak == Peak(10 + 1000, "backward of first")
    assert fold(arena.events, holds_spent=True).peak == Peak(100 + 10 + 1000, "backward of first")
    assert arena.live == 1000


def test_an_addition_shares_one_gradient_until_both_sides_are_done() -> None:
    """a + branch(a): the branch's gradient is added to the residual's in a third tensor."""
    out, branch, entry = (Tensor(name, (10,), DType.BOOL) for name in ("out", "branch", "entry"))
    arena, gradients = received(out)
    gradients.step(
        operator("add", (branch, entry), (out,), gradient_passed_to=frozenset({"branch", "entry"}))
    )
    assert arena.live == 10
    gradients.step(operator("branch", (entry,), (branch,)))
    assert fold(arena.events).peak == Peak(30, "gradient sum of entry")
    assert arena.live == 10


def test_a_gathered_gradient_takes_the_place_of_its_own_shard() -> None:
    arena, gradients = received(C)
    gradients.step(operator("row", (D,), (C,), gathers_gradient=True, backward_workspace=200))
    assert fold(arena.events).peak == Peak(1200, "backward of row")
    assert fold(arena.events, holds_spent=True).peak == Peak(1300, "backward of row")


def test_kept_gradients_stay_until_they_are_let_go() -> None:
    arena, gradients = received(C)
    gradients.keep((C,))
    gradients.step(operator("inside", (B,), (C,)))
    assert arena.live == 110
    gradients.let_go()
    assert arena.live == 10


def test_a_gradient_in_a_saved_storage_takes_nothing() -> None:
    arena, gradients = received(B)
    gradients.step(operator("loss", (C,), (B,), gradient_in_saved=True))
    assert fold(arena.events).peak.num_bytes == 10


def test_inputs_without_gradient() -> None:
    arena, gradients = received(A)
    gradients.step(operator("x", (B, C), (A,), gradient_free_inputs=frozenset({"c"})))
    assert arena.live == 10


def test_a_storage_is_taken_once_and_grows_where_more_is_asked_for() -> None:
    arena = Arena()
    for num_bytes in (5, 5, 3, 8):
        arena.add("a", num_bytes)
    assert arena.events == [(TAKE, "a", 5), (GIVE, "a", 5), (TAKE, "a", 8)]
    assert arena.live == 8
