"""Attention that a framework's layers do not have is refused in one line."""

import pytest

from advisor.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--model deepseek_v2_lite model.transformer_impl=local", "use transformer_engine"),
        (
            "--model phi4 --framework fsdp2 model.window_size=1024",
            "model.window_size = 1024: has no model in plain torch layers",
        ),
        (
            "--model phi4 --framework fsdp2 model.mtp_num_layers=1",
            "has no model of mtp_num_layers here",
        ),
        ("--model olmo2_32b --framework fsdp2", "has no model in plain torch layers"),
        ("--model olmo2_32b --framework nemo", "Megatron Core has no such layers; use --framework"),
        ("--model gemma2_9b --framework megatron_lm", "Megatron-LM's command line has no such lay"),
        ("--model gemma2_9b model.attention_backend=flash", "= flash caps scores: use unfused"),
        (
            "--model gemma2_27b --tp 1 --pp 1 --cp 2",
            "context_parallel_size = 2: capped scores are not computed",
        ),
        ("--model phi4 model.norm_placement=post", "needs transformer_impl = transformers"),
        ("--model phi4 model.qk_layernorm_across_heads=true", "needs transformer_impl"),
        ("--model qwen3_8b model.qk_l2_norm=true", "excludes qk_layernorm"),
        ("--model phi4 model.attention_chunk_size=0", "must be positive"),
        ("--model mistral_7b_v0.1 model.attention_chunk_size=64", "with unfused attention or win"),
        ("--model phi4 model.no_rope_freq=[0,1]", "has 2 layers, and the model 40"),
        ("--model deepseek_v2_lite model.no_rope_freq=4", "not modelled with multi-latent"),
        ("--model phi4 model.window_attn_skip_freq=2", "needs window_size"),
        ("--model phi4 --framework fsdp2 job.deterministic_mode=true", "is Megatron's, and not"),
    ],
)
def test_one_line(capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    assert main([*arguments.split(), "--gpus", "8xH100"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
