"""Identity of a workload."""

from msgspec import defstruct
from msgspec.structs import fields, replace

from harness.trial.trial import Workload, _given
from tests.harness.conftest import TRIAL

WORKLOAD: Workload = TRIAL.workload


def test_every_field_that_is_given_counts() -> None:
    layers = replace(WORKLOAD, model=replace(WORKLOAD.model, num_layers=97))
    batch = replace(WORKLOAD, layout=replace(WORKLOAD.layout, overlap_grad_reduce=False))
    keys = {one.key() for one in (WORKLOAD, layers, batch, replace(WORKLOAD, recompute="none+x"))}
    assert len(keys) == 4
    assert replace(layers, model=WORKLOAD.model).key() == WORKLOAD.key()


def test_a_new_field_with_a_default_changes_no_key() -> None:
    old = defstruct("Old", [("a", int), ("b", int, 3)])
    new = defstruct("New", [("a", int), ("b", int, 3), ("c", str, "")])
    assert _given(old(1)) == _given(new(1)) == {"a": 1}
    assert _given(new(1, c="x")) == {"a": 1, "c": "x"}
    assert len(_given(WORKLOAD)) <= len(fields(WORKLOAD))
