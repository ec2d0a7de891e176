"""Flags of latent attention, windows, sinks and multi-token prediction, verbatim."""

import pytest

from advisor.frameworks.megatron.attention_flags import attention_flags, attention_overrides
from advisor.models.presets import load_model

LATENT = "--kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"


@pytest.mark.parametrize(
    ("name", "flags", "overrides"),
    [
        ("llama3_8b", "", ""),
        (
            "deepseek_v3",
            f"--multi-latent-attention --q-lora-rank 1536 {LATENT} --rope-type yarn "
            "--mtp-num-layers 1",
            "mtp_num_layers=1",
        ),
        ("deepseek_v2_lite", f"--multi-latent-attention {LATENT} --rope-type yarn", ""),
        (
            "gpt_oss_20b",
            "--window-size 128,0 --window-attn-skip-freq 2 --softmax-type learnable",
            "",
        ),
    ],
)
def test_flags(name: str, flags: str, overrides: str) -> None:
    model = load_model(name)
    assert " ".join(attention_flags(model)) == flags
    assert " ".join(attention_overrides(model)) == overrides
