"""Options of inference, which training never reads."""

from typing import Final

from advisor.frameworks.option import Options, harmless

_INFERENCE: Final = "used only for inference"


class Inference(Options, title="Inference"):
    """Options of inference."""

    flash_decode: bool = harmless(False, _INFERENCE)
    inference_sampling_seed: int = harmless(42, _INFERENCE, flag="", since="0.15")
    use_inference_optimized_layers: bool = harmless(False, _INFERENCE, flag="", since="0.16")
    inference_fuse_tp_communication: bool = harmless(False, _INFERENCE, since="0.16")
    inference_disable_triton_nvls_kernels: bool = harmless(False, _INFERENCE, since="0.17")
    inference_grouped_gemm_backend: str = harmless(
        "vllm", _INFERENCE, since="0.17", older={"0.17": "auto"}
    )
    inference_moe_disable_fused_quant_kernels: bool = harmless(False, _INFERENCE, since="0.17")
    inference_moe_token_dispatcher_type: str = harmless("nvls", _INFERENCE, since="0.18")
    nccl_all_reduce_for_prefill: bool = harmless(False, _INFERENCE, since="0.17")
    mlp_chunks_for_prefill: int = harmless(1, _INFERENCE, since="0.13")
