"""Flags of latent attention, windows, sinks and multi-token prediction, verbatim."""

from types import SimpleNamespace

import pytest

from advisor.frameworks.megatron.flags import flags_of, override, recipe_values
from advisor.frameworks.megatron.options.attention import Attention
from advisor.frameworks.megatron.raw import job_values
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.job.job import JobConfig
from advisor.job.layout import ParallelLayout
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
    config = JobConfig(seq_length=4096, micro_batch_size=1, global_batch_size=1)
    job = SimpleNamespace(model=model, layout=ParallelLayout(), config=config)
    revision = resolve_revision(Framework.MEGATRON_LM)
    values = job_values(job, revision)
    assert " ".join(flags_of((Attention,), values, job, revision)) == flags
    found = recipe_values((Attention,), values, job, revision)
    assert " ".join(override(row.name, row, value) for row, value in found) == overrides
