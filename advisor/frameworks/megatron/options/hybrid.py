"""Options of layers with another mixer than softmax attention, and of patterns of layers."""

from advisor.frameworks.option import ON_LINE, Options, harmless, option, refused, unpriced


class Hybrid(Options, title="Mixers other than attention"):
    """Options of gated delta nets, Mamba-2 layers and patterns of layers."""

    hybrid_layer_pattern: str | None = option(
        None, "model", was="hybrid_override_pattern", renamed="0.17", emitted=ON_LINE
    )
    linear_attention_freq: str | None = option(None, "model", ON_LINE, since="0.16")
    linear_conv_kernel_dim: int = option(4, "model", ON_LINE, since="0.16")
    linear_key_head_dim: int = option(128, "model", ON_LINE, since="0.16")
    linear_value_head_dim: int = option(128, "model", ON_LINE, since="0.16")
    linear_num_key_heads: int = option(16, "model", ON_LINE, since="0.16")
    linear_num_value_heads: int = option(32, "model", ON_LINE, since="0.16")
    mamba_state_dim: int = option(128, "model", ON_LINE, since="0.12")
    mamba_head_dim: int = option(64, "model", ON_LINE, since="0.12")
    mamba_num_groups: int = option(8, "model", ON_LINE, since="0.12")
    mamba_num_heads: int | None = option(None, "model", ON_LINE, since="0.13")
    is_hybrid_model: bool = harmless(False, "follows from hybrid_layer_pattern", since="0.12")
    use_mamba_mem_eff_path: bool = unpriced(
        True,
        "Mamba-2 layers are modelled with their fused kernel",
        off="--disable-mamba-mem-eff-path",
        since="0.13",
    )
    mamba_training_ssm_states_dtype: str | None = unpriced(
        None, "SSM states are modelled in the kernel's type", since="0.19"
    )
    heterogeneous_block_specs: bool = refused(
        False, "layers of different shapes are not modelled", flag="", since="0.12"
    )
    hetereogenous_dist_checkpoint: bool = harmless(
        False, "used only for checkpoints", flag="", since="0.13"
    )
    heterogeneous_layers_config_path: str | None = refused(
        None, "layers of different shapes are not modelled"
    )
    heterogeneous_layers_config_encoded_json: str | None = refused(
        None, "layers of different shapes are not modelled"
    )
    spec: tuple[str, ...] = unpriced((), "layers are modelled as in the built-in layer specs")
