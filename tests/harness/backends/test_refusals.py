"""The first refusal that holds is told, with the value of its field."""

from collections.abc import Iterator

import pytest

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from harness.backends.refusals import Refusal, refuse, value_of
from harness.trial.trial import Backend, Device, Workload

WORKLOAD = Workload(
    model=load_model("llama3_8b"),
    layout=ParallelLayout(tensor_model_parallel_size=2),
    seq_length=4096,
    micro_batch_size=1,
    global_batch_size=8,
    precision=Precision.BF16,
    recompute="full:block:4",
    backend=Backend.NATIVE,
    device=Device.CPU,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.hidden_size", 4096),
        ("layout.tensor_model_parallel_size", 2),
        ("job.seq_length", 4096),
        ("--recompute", "full:block:4"),
        ("recompute", "full:block:4"),
    ],
)
def test_a_field_has_its_value(field: str, value: object) -> None:
    assert value_of(WORKLOAD, field) == value


def test_the_first_that_holds_is_told() -> None:
    def refusals() -> Iterator[Refusal]:
        yield False, "model.hidden_size", "is no problem", ""
        yield True, "job.seq_length", "is odd", "use 8"
        raise AssertionError("nothing behind it is looked at")

    with pytest.raises(UserError, match=r"job\.seq_length") as raised:
        refuse(WORKLOAD, refusals())
    assert (raised.value.relation, raised.value.nearest) == ("is odd", "use 8")


def test_none_that_holds_is_none() -> None:
    refuse(WORKLOAD, [(False, "model.hidden_size", "is no problem", "")])
