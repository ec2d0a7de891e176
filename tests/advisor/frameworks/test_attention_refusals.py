"""Attention that a framework's layers do not have is refused in one line."""

import pytest

from advisor.cli.main import main

GEMMA4 = "gemma3_27b model.transformer_impl=transformers model.global_kv_channels=512"
HF_GEMMA4 = f"{GEMMA4} --framework huggingface"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("deepseek_v2_lite model.transformer_impl=local", "use transformer_engine"),
        (
            "phi4 --framework fsdp2 model.window_size=1024",
            "model.window_size = 1024: is not modelled with plain torch layers",
        ),
        ("phi4 --framework fsdp2 model.mtp_num_layers=1", "is not modelled with mtp_num_layers"),
        ("olmo2_32b --framework fsdp2", "is not modelled with plain torch layers"),
        ("olmo2_32b --framework nemo", "Megatron Core has no such layers; use --framework"),
        (f"{GEMMA4} --framework megatron_bridge", "has modules of its own for such layers"),
        (f"{GEMMA4} --framework nemo", "Megatron Core has no such layers"),
        (f"{GEMMA4} --framework torchtitan", "torchtitan has no such layers"),
        (f"{HF_GEMMA4} job.attn_implementation=flash_attention_2", "for heads of 512 channels"),
        ("gemma2_9b --framework megatron_lm", "Megatron-LM's command line has no such lay"),
        (
            "gemma2_9b model.attention_backend=flash",
            "attention_backend = unfused: flash has no ker",
        ),
        ("gemma2_27b --tp 1 --pp 1 --cp 2", "_size = 2: cannot be combined with model.attn_logit"),
        ("phi4 model.norm_placement=post", "needs transformer_impl = transformers"),
        ("phi4 model.qk_layernorm_across_heads=true", "needs transformer_impl"),
        ("qwen3_8b model.qk_l2_norm=true", "cannot be combined with qk_layernorm"),
        ("phi4 model.attention_chunk_size=0", "must be positive"),
        ("mistral_7b_v0.1 model.attention_chunk_size=64", "with unfused attention or win"),
        ("phi4 model.no_rope_freq=[0,1]", "has 2 layers, but the model has 40"),
        ("deepseek_v2_lite model.no_rope_freq=4", "not modelled with multi-latent"),
        ("phi4 model.window_attn_skip_freq=2", "needs window_size"),
        ("phi4 --framework fsdp2 job.deterministic_mode=true", "is Megatron's and is not"),
        ("qwen3_next_80b_a3b model.transformer_impl=local", "has no gated_delta_net"),
        ("nemotron3_nano_30b_a3b --framework huggingface", "with hybrid_layer_"),
        ("llama3_8b --framework fsdp2 model.attention_output_gate=true", "attention_output_gate"),
        (
            "llama3_8b --framework huggingface model.hybrid_layer_pattern=" + "M-" * 16,
            "is not modelled with hybrid_layer_pattern",
        ),
    ],
)
def test_one_line(capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    assert main(["--model", *arguments.split(), "--gpus", "8xH100"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--framework fsdp2 job.cuda_graph_impl=local", "cuda_graph_impl = local: is an option"),
        ("--framework torchtitan job.cuda_graph_modules=attn", "and not modelled for torchtitan"),
        ("--framework deepspeed job.use_precision_aware_optimizer=true", "for deepspeed; leave it"),
        ("--framework huggingface job.fp8_recipe=delayed", "or --framework megatron_lm"),
        ("--framework fsdp2 job.transformer_engine_version=2.11", "is an option of Megatron"),
        ("--framework huggingface job.mean_packed_length=1024", "is not modelled for huggingface"),
        ("--framework fsdp2 model.cross_entropy_fusion=te", "model.cross_entropy_fusion=none, or"),
        ("--framework fsdp2 model.gradient_accumulation_fusion=true", "fusion=false, or --frame"),
        ("--framework huggingface model.attention_backend=unfused", "attention_backend=flash, or"),
    ],
)
def test_options_of_megatron_are_none_of_a_pytorch_stack(capsys, arguments: str, says: str) -> None:
    test_one_line(capsys, f"llama3_8b {arguments}", says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("deepseek_v3 --framework torchtitan", "model.mtp_num_layers=null, or --framework"),
        ("deepseek_v3 --framework huggingface", "model.mtp_num_layers=null, or --framework"),
        ("nemotron3_nano_30b_a3b --framework huggingface", "; --framework megatron_lm"),
        ("llama4_scout_17b_16e --framework huggingface", "; --framework megatron_bridge"),
        ("gpt_oss_20b --framework torchtitan", "; --framework megatron_lm"),
    ],
)
def test_the_framework_that_is_named_instead_builds_the_model(capsys, arguments, says) -> None:
    asked = ["--model", *arguments.split(), "--gpus", "256xH100"]
    assert main(asked) == 2
    error = capsys.readouterr().err
    assert says in error
    for way in error.strip().rpartition("; ")[2].split(", or "):
        assert main([*asked, *way.split(), "--top", "1", "--quick"]) in (0, 1)


def test_a_recipe_s_layers_are_split_anew_where_the_model_has_others(capsys) -> None:
    """DeepSeek-V3's recipe puts its multi-token prediction into the last stage by name."""
    asked = ["--model", "deepseek_v3", "--gpus", "1024xH100", "--format", "flags", "--quick"]
    for layers, text in (("null", "Et|(tt|)*30L"), ("1", "Et|(tt|)*30mL")):
        assert main([*asked, f"model.mtp_num_layers={layers}"]) in (0, 1)
        assert text in capsys.readouterr().out


@pytest.mark.parametrize("gpu", ["A100", "B200"])
def test_flash_attention_3_is_for_hopper(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    asked = "--model llama3_8b --framework huggingface job.attn_implementation=flash_attention_3"
    assert main([*asked.split(), "--gpus", "8xH200"]) == 0
    capsys.readouterr()
    assert main([*asked.split(), "--gpus", f"8x{gpu}"]) == 2
    error = capsys.readouterr().err
    assert "FlashAttention-3 needs a Hopper GPU" in error
    assert "job.attn_implementation=sdpa" in error
