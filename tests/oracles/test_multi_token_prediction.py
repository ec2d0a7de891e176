"""Multi-token prediction against the real Megatron Core: saved bytes and activation peaks."""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from .megatron import OracleCase, saved_bytes
from .prediction import (
    LLAMA3_70B,
    assert_peaks,
    full,
    predicted_saved_bytes_of_model,
    selections,
    tensor_parallel,
)
from .test_latent_attention import DEEPSEEK_V2_LITE

LLAMA = LLAMA3_70B.changed(num_layers=2, seq_length=2048, vocab_size=32768)
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": {},
    "tp4": tensor_parallel(4, False),
    "tp4_sp": tensor_parallel(4, True),
}
SETTINGS: dict[str, dict[str, Any]] = {
    **selections("mlp", "layernorm"),
    "uniform": full("uniform", 1),
    "block": full("block", 1),
}
OF_A_DEPTH = 12
"""Bytes of its count of tokens and the two factors of its loss."""


def rotary_table(case: OracleCase) -> int:
    """Frequencies that checkpoints keep as an argument, and a cache of the model anyway."""
    return case.seq_length * 128 * 4 if case.recompute_granularity == "full" else 0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("layout", "depths"), [("tp1", 1), ("tp4", 2), ("tp4_sp", 2)])
def test_saved_bytes(layout: str, depths: int, setting: str) -> None:
    case = LLAMA.changed(mtp_num_layers=depths, **LAYOUTS[layout], **SETTINGS[setting])
    expected = predicted_saved_bytes_of_model(case) + rotary_table(case)
    assert saved_bytes(case) - expected == OF_A_DEPTH * depths


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
