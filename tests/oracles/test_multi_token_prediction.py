"""Multi-token prediction against the real Megatron Core: saved bytes and activation peaks."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from .megatron import OracleCase, activation_peak, saved_bytes  # noqa: E402
from .prediction import (  # noqa: E402
    LLAMA3_70B,
    full,
    predicted_peak,
    predicted_saved_bytes_of_model,
    selective,
    tensor_parallel,
)
from .test_latent_attention import DEEPSEEK_V2_LITE  # noqa: E402

LLAMA = LLAMA3_70B.changed(num_layers=2, seq_length=2048, vocab_size=32768)
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": {},
    "tp4": tensor_parallel(4, False),
    "tp4_sp": tensor_parallel(4, True),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "mlp": selective("mlp"),
    "layernorm": selective("layernorm"),
    "uniform": full("uniform", 1),
    "block": full("block", 1),
}
SCALARS_BYTES = 64
"""Token counts and losses of the schedule: see test_activation_peaks. Each depth keeps its count of
tokens and the two factors of its loss: 12 bytes."""


def rotary_table(case: OracleCase) -> int:
    """Frequencies that checkpoints keep as an argument, and a cache of the model anyway."""
    return case.seq_length * 128 * 4 if case.recompute_granularity == "full" else 0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("layout", "depths"), [("tp1", 1), ("tp4", 2), ("tp4_sp", 2)])
def test_saved_bytes(layout: str, depths: int, setting: str) -> None:
    case = LLAMA.changed(mtp_num_layers=depths, **LAYOUTS[layout], **SETTINGS[setting])
    expected = predicted_saved_bytes_of_model(case) + rotary_table(case)
    assert saved_bytes(case) - expected == 12 * depths


def assert_peaks(case: OracleCase) -> None:
    for stage in range(case.pipeline_model_parallel_size):
        measured, predicted = activation_peak(case, stage), predicted_peak(case, stage)
        assert 0 <= measured - predicted <= SCALARS_BYTES, f"stage {stage}: {predicted / measured}"


@pytest.mark.parametrize("vocabulary", [1024, 129024])
@pytest.mark.parametrize(("pp", "depths"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_peaks(layout: str, pp: int, depths: int, vocabulary: int) -> None:
    """A small vocabulary puts the peak into a layer, a large one into the losses."""
    case = LLAMA.changed(mtp_num_layers=depths, vocab_size=vocabulary, **LAYOUTS[layout])
    assert_peaks(case.changed(pipeline_model_parallel_size=pp, num_microbatches=3))


@pytest.mark.parametrize("setting", ["mlp", "uniform", "block"])
def test_peaks_with_recompute(setting: str) -> None:
    case = LLAMA.changed(mtp_num_layers=1, **LAYOUTS["tp4_sp"], **SETTINGS[setting])
    assert_peaks(case.changed(pipeline_model_parallel_size=2, num_microbatches=3))


def test_peaks_after_latent_attention() -> None:
    case = DEEPSEEK_V2_LITE.changed(mtp_num_layers=1, **LAYOUTS["tp4_sp"])
    assert_peaks(case.changed(pipeline_model_parallel_size=2, num_microbatches=3))
