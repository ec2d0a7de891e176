"""The options that we print, as Megatron-LM defines them.

From the wheels megatron-core 0.17.1, 0.18.2 and 0.19.2: training/arguments.py for the hand-written
ones, argument_utils.py (ArgumentGroupFactory) for those made from TransformerConfig's and
TrainingConfig's fields: a list becomes nargs="+", a Literal choices, a False switch store_true.
"""

import argparse

GRAPH_MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")


def parser(core: str = "0.19") -> argparse.ArgumentParser:
    """Megatron-LM's parser of release `core`, cut down to the options of this project."""
    new = argparse.ArgumentParser(allow_abbrev=False)
    for name in (
        *("tensor-model-parallel-size", "pipeline-model-parallel-size"),
        *("context-parallel-size", "num-layers-per-virtual-pipeline-stage"),
        *("num-virtual-stages-per-pipeline-rank", "micro-batch-size", "global-batch-size"),
        *("seq-length", "recompute-num-layers", "cpu-offloading-num-layers", "mtp-num-layers"),
        *("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"),
    ):
        new.add_argument(f"--{name}", type=int)
    for name in ("hidden-dropout", "attention-dropout"):
        new.add_argument(f"--{name}", type=float, default=0.1)
    for name in (
        *("sequence-parallel", "tp-comm-overlap", "use-distributed-optimizer"),
        *("overlap-grad-reduce", "overlap-param-gather", "bf16", "fp16"),
        *("accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "recompute-activations"),
        *("distribute-saved-activations", "fine-grained-activation-offloading"),
    ):
        new.add_argument(f"--{name}", action="store_true")
    new.add_argument("--attention-softmax-in-fp32", action="store_true", default=None)
    for name in (
        *("masked-softmax-fusion", "bias-gelu-fusion", "bias-swiglu-fusion"),
        *("bias-dropout-fusion", "gradient-accumulation-fusion"),
    ):
        dest = name.replace("-", "_")
        new.add_argument(f"--no-{name}", action="store_false", dest=dest, default=None)
    new.add_argument("--pipeline-model-parallel-layout", type=str)
    new.add_argument("--cp-comm-type", nargs="+", type=str, default=["p2p"])
    new.add_argument("--hierarchical-context-parallel-sizes", nargs="+", type=int)
    new.add_argument(
        "--no-create-attention-mask-in-dataloader",
        action="store_false",
        dest="create_attention_mask_in_dataloader",
    )
    new.add_argument("--recompute-granularity", type=str, choices=("full", "selective"))
    new.add_argument("--recompute-method", type=str, choices=("uniform", "block"))
    new.add_argument("--recompute-modules", type=str, nargs="+")
    new.add_argument("--offload-modules", type=str, nargs="+", default=[])
    new.add_argument("--fp8-format", dest="fp8", type=str, choices=("e4m3", "hybrid"))
    new.add_argument(
        "--fp8-recipe",
        type=str,
        default="delayed",
        choices=("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    )
    new.add_argument("--fp4-format", dest="fp4", type=str, choices=("e2m1",))
    new.add_argument("--fp4-recipe", type=str, default="nvfp4", choices=("nvfp4", "custom"))
    new.add_argument(
        "--transformer-impl",
        type=str,
        default="transformer_engine",
        choices=("local", "transformer_engine", "inference_optimized"),
    )
    new.add_argument(
        "--attention-backend", type=str, choices=("flash", "fused", "unfused", "local", "auto")
    )
    new.add_argument(
        "--no-check-for-nan-in-loss-and-grad",
        action="store_false",
        dest="check_for_nan_in_loss_and_grad",
    )
    new.add_argument(
        "--optimizer",
        type=str,
        default="adam",
        choices=("adam", "sgd", "muon", "dist_muon", "lion"),
    )
    if core in ("0.18", "0.19"):
        new.add_argument(
            "--no-use-layer-wise-param-layout",
            action="store_false",
            dest="use_layer_wise_param_layout",
        )
    _add_graphs(new, core)
    return new


def _add_graphs(new: argparse.ArgumentParser, core: str) -> None:
    if core in ("0.13", "0.14"):
        new.add_argument("--enable-cuda-graph", action="store_true")
        new.add_argument("--external-cuda-graph", action="store_true")
        new.add_argument("--cuda-graph-scope", type=str, default="full")
        return
    modern = core in ("0.18", "0.19")
    impls = ("none", "local", "transformer_engine") + (("full_iteration",) if modern else ())
    new.add_argument("--cuda-graph-impl", type=str, default="none", choices=impls)
    scopes = ("full", "full_iteration", "full_iteration_inference", *GRAPH_MODULES)
    flag = "--cuda-graph-modules" if modern else "--cuda-graph-scope"
    new.add_argument(flag, nargs="+", choices=scopes, default=[])
