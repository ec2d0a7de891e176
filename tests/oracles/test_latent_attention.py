"""Multi-latent attention against the real Megatron Core: saved bytes and activation peaks.

Megatron's local core attention takes no key and value widths of its own, so these cases run with
the oracle's flash attention. Saved bytes are equal except one table: the argument of mla_up_proj's
checkpoint that holds the rotary frequencies, fp32 [seq_length, 1, 1, qk_pos_emb_head_dim]. The
cache of the class that makes them keeps them anyway, and there the advisor counts them.
"""

from typing import Any

import pytest

pytest.importorskip("megatron.core")

from .megatron import OracleCase, rows_of, saved_bytes_of_a_layer
from .prediction import (
    RELEASE,
    assert_peaks,
    full,
    predicted_saved_bytes,
    selections,
    selective,
    tensor_parallel,
)

DEEPSEEK_V3 = OracleCase(
    num_layers=4,
    hidden_size=7168,
    ffn_hidden_size=18432,
    num_attention_heads=128,
    seq_length=2048,
    vocab_size=129280,
    multi_latent_attention=True,
    q_lora_rank=1536,
    qk_layernorm=True,
)
DEEPSEEK_V2_LITE = DEEPSEEK_V3.changed(
    hidden_size=2048,
    ffn_hidden_size=10944,
    num_attention_heads=16,
    q_lora_rank=None,
    qk_layernorm=not RELEASE.at_least(0, 19),  # which refuses a norm of queries of full rank
    vocab_size=102400,
    micro_batch_size=2,
)
MODELS = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v2_lite": DEEPSEEK_V2_LITE,
    "rope": DEEPSEEK_V2_LITE.changed(rope_type="rope", qk_layernorm=False),
}
SETTINGS: dict[str, dict[str, Any]] = {
    **selections("core_attn", "mla_up_proj", "layernorm"),
    **selections("core_attn,mla_up_proj", "mla_up_proj,layernorm"),
    "all": selective("core_attn", "mla_up_proj", "layernorm", "mlp"),
    "full": full("uniform", 1),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": {},
    "tp4": tensor_parallel(4, False),
    "tp4_sp": tensor_parallel(4, True),
    "tp2_sp_cp2": {**tensor_parallel(2, True), "context_parallel_size": 2},
}
TWO_STAGES = DEEPSEEK_V3.changed(pipeline_model_parallel_size=2, num_microbatches=3)


def rotary_table(case: OracleCase) -> int:
    if "mla_up_proj" not in (case.recompute_modules or ()):
        return 0
    return case.local_seq_length * case.qk_pos_emb_head_dim * 4


def assert_saved(case: OracleCase) -> None:
    expected = predicted_saved_bytes(case) + rotary_table(case)
    assert expected == saved_bytes_of_a_layer(case), rows_of(case)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_of_every_setting(name: str, setting: str) -> None:
    assert_saved(MODELS[name].changed(**LAYOUTS["tp4_sp"], **SETTINGS[setting]))


@pytest.mark.parametrize("setting", ["none", "mla_up_proj", "all"])
@pytest.mark.parametrize("layout", ["tp1", "tp4", "tp2_sp_cp2"])
@pytest.mark.parametrize("name", MODELS)
def test_saved_bytes_of_every_layout(name: str, layout: str, setting: str) -> None:
    assert_saved(MODELS[name].changed(**LAYOUTS[layout], **SETTINGS[setting]))


@pytest.mark.parametrize("setting", SETTINGS)
def test_peaks_of_every_setting(setting: str) -> None:
    assert_peaks(TWO_STAGES.changed(**LAYOUTS["tp4_sp"], **SETTINGS[setting]))


@pytest.mark.parametrize("setting", ["none", "all"])
@pytest.mark.parametrize("layout", ["tp1", "tp4"])
def test_peaks_without_sequence_parallelism(layout: str, setting: str) -> None:
    assert_peaks(TWO_STAGES.changed(**LAYOUTS[layout], **SETTINGS[setting]))


@pytest.mark.parametrize("layout", ["tp1", "tp4", "tp4_sp"])
def test_peaks_where_attention_is_the_largest_part(layout: str) -> None:
    narrow = DEEPSEEK_V3.changed(ffn_hidden_size=512, vocab_size=1024)
    assert_peaks(narrow.changed(**LAYOUTS[layout], **SETTINGS["mla_up_proj"]))
