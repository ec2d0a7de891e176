"""Options of how layers are run: whose modules and kernels, which steps are fused."""

from typing import Final

from advisor.frameworks.megatron.options.values import fuses_loss, loss_fusion, runs_own_softmax
from advisor.frameworks.option import (
    ALWAYS,
    EMITTED,
    ON_LINE,
    SET_IN_RECIPES,
    WITH_LAYOUT,
    Emitted,
    Format,
    Options,
    When,
    checked,
    harmless,
    option,
    refused,
    unpriced,
)
from advisor.models.options import Activation

_GELU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.GELU))
_SWIGLU: Final = Emitted(line=When(only_if=lambda job: job.model.activation is Activation.SWIGLU))
_OWN_SOFTMAX: Final = Emitted(line=When(only_if=runs_own_softmax))
_ALWAYS: Final = Emitted(line=ALWAYS, recipe=ALWAYS, nemo_1="")
_FUSED: Final = "steps are modelled with the fusions that the model.* keys select"


class Implementation(Options, title="Kernels and fusions"):
    """Options of modules, kernels and fusions."""

    transformer_impl: str = option("transformer_engine", "model", ON_LINE, since="0.14")
    attention_backend: str = option("auto", "model", line=WITH_LAYOUT)
    attention_softmax_in_fp32: bool = option(
        True, "model", _OWN_SOFTMAX, flag="--attention-softmax-in-fp32", launcher=False
    )
    masked_softmax_fusion: bool = option(
        False, "model", _OWN_SOFTMAX, flag="", off="--no-masked-softmax-fusion", launcher=True
    )
    bias_activation_fusion: bool = option(False, "model", flag="")
    bias_gelu_fusion: bool = option(True, "model.bias_activation_fusion", _GELU)
    bias_swiglu_fusion: bool = option(True, "model.bias_activation_fusion", _SWIGLU)
    bias_dropout_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-bias-dropout-fusion", launcher=True
    )
    apply_rope_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-rope-fusion", launcher=True
    )
    gradient_accumulation_fusion: bool = option(
        False, "model", ON_LINE, flag="", off="--no-gradient-accumulation-fusion", launcher=True
    )
    use_flash_attn: bool = harmless(False, "an old name of attention_backend flash")
    use_mcore_models: bool = harmless(False, "every model is Megatron Core's")
    use_legacy_models: bool = refused(
        False, "the models from before Megatron Core are not modelled"
    )
    enable_experimental: bool = harmless(False)
    use_transformer_engine_op_fuser: bool = checked(False, _FUSED, since="0.18")
    use_te_activation_func: bool = unpriced(False, _FUSED, since="0.15")
    fused_single_qkv_rope: bool = unpriced(False, _FUSED, flag="", since="0.15")
    fused_residual_rmsnorm: bool = unpriced(False, _FUSED, since="0.17")
    persist_layer_norm: bool = harmless(
        False, "another kernel of the same norm", flag="", off="--no-persist-layer-norm"
    )
    memory_efficient_layer_norm: bool = unpriced(
        False, "norms are modelled as keeping their input", flag=""
    )
    mlp_chunks_for_training: int = unpriced(1, "the MLP is modelled in one piece", since="0.18")
    batch_invariant_mode: bool = unpriced(
        False, "kernels are modelled at their usual speed", since="0.16"
    )
    deterministic_mode: bool = option(False, "job", EMITTED, nemo_1="")
    disable_jit_fuser: bool = unpriced(False, _FUSED)
    clone_scatter_output_in_embedding: bool = unpriced(
        True, "the embedding's output is modelled as a copy"
    )
    calculate_per_token_loss: bool = harmless(False)
    test_mode: bool = harmless(False, "used only in tests", flag="")


class Dropout(Options, title="Dropout"):
    """Options of dropout, of which Megatron-LM has some unless a command line says none."""

    hidden_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)
    attention_dropout: float = option(0.1, "model", ON_LINE, format=Format.SHORT)


class Loss(Options, title="Loss"):
    """Options of the loss."""

    cross_entropy_loss_fusion: bool = option(
        False, "model.cross_entropy_fusion", SET_IN_RECIPES, value=fuses_loss, nemo_1=""
    )
    cross_entropy_fusion_impl: str = option(
        "native", "model.cross_entropy_fusion", _ALWAYS, value=loss_fusion, since="0.12"
    )
