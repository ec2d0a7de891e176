"""Which tensors a wrong prediction is told to be wrong about."""

import pytest
from msgspec.structs import replace

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from harness.backends.megatron_core.rehearsal.storage_differences import storage_differences  # noqa: E402
from harness.backends.megatron_core.translate import megatron_case  # noqa: E402
from tests.harness.backends.megatron_core.workloads import LLAMA  # noqa: E402
from tests.harness.rehearsal.toys import TRIAL  # noqa: E402

WORKLOAD = TRIAL.workload
CASE = megatron_case(WORKLOAD)


def test_a_layer_that_is_predicted_right_is_not_suspected() -> None:
    same = "per layer, prediction and rehearsal keep the same tensors"
    assert storage_differences(WORKLOAD, CASE) == same
    whole = replace(WORKLOAD, recompute="full:uniform:1")
    assert storage_differences(whole, megatron_case(whole)) == ""


def test_the_tensors_that_only_one_side_keeps_are_named_with_their_bytes() -> None:
    """Unfused SwiGLU keeps silu(gate) and a copy of the other half."""
    unfused = replace(WORKLOAD, model=replace(LLAMA, bias_activation_fusion=False))
    assert "only the prediction keeps glu_gate (" in storage_differences(unfused, CASE)
    reported = storage_differences(WORKLOAD, megatron_case(unfused))
    assert "only the rehearsal keeps bfloat16" in reported
    assert "mlp" in reported
