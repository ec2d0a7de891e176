"""The first rule that a workload breaks is what its user reads, with the value of its field."""

import pytest

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.rule import refuse
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from harness.backends.workload_rule import WorkloadRule, value_of
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


def test_the_first_that_applies_is_refused() -> None:
    def late(_: Workload) -> bool:
        raise AssertionError("nothing after it is asked")

    rules = (
        WorkloadRule.of("model.hidden_size", {"legal": [4096], "reason": "is no problem"}, {}),
        WorkloadRule.on("job.seq_length", lambda w: w.seq_length, "is {found}", "use 8"),
        WorkloadRule.on("job.seq_length", late, "is odd"),
    )
    refuse(rules[:1], WORKLOAD)
    with pytest.raises(UserError, match=r"job\.seq_length = 4096") as raised:
        refuse(rules, WORKLOAD)
    assert (raised.value.relation, raised.value.nearest) == ("is 4096", "use 8")
