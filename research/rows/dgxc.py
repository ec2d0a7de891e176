"""NVIDIA/dgxc-benchmarking: Llama 8B, Nemotron 15B and Grok-1 on H100, without the LoRA rows.

NeMo's recipes of the dense models: 16-bit gradient buffer, fused cross entropy, overlapped gradient
and parameter communication, user-buffer overlap where TP > 1, delayed scaling for FP8 with weights
kept in 8 bits (fp8_params); Grok-1 is taken to have the same. Its layers are what the READMEs'
FLOPs ask for: 64 of 6144, eight experts of 32768 with a gate, two a token. Experts are cut by TP,
Megatron's default, but where a row says ETP 1; tokens travel by all-to-all, permuted without a
fused kernel, Megatron's default as well. The tags do not name Megatron's release: that of the NeMo
container of their months is assumed.
"""

import re
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.options import Activation, CrossEntropyFusion
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from research.rows.row import (
    PACKED_SEQUENCE,
    PUBLISHED,
    Row,
    degree,
    read_rows,
    setting_of,
)
from research.rows.targets import Target

_PRESETS: Final = {
    "Llama 3.1 8B": "llama3.1_8b",
    "Nemotron-4 15B": "nemotron4_15b",
    "Llama 3 8B SFT": "llama3_8b",
}
_RELEASES: Final = {"v25.03": "0.11", "v25.05.05": "0.12"}
_GROK_LAYERS: Final = 64
_CUT: Final = re.compile(r"Grok-1 (?:314B|cut to (?P<layers>\d+) layers)")


def dgxc_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Every row but LoRA."""
    rows = read_rows(folder, "dgxc_benchmarking")
    return tuple(_target(row) for row in rows if "LoRA" not in row["model"])


def _target(row: Row) -> Target:
    model = replace(_model(row["model"]), cross_entropy_fusion=CrossEntropyFusion.NATIVE)
    tp, vpp = int(row["tp"]), degree(row, "vpp")
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        context_parallel_size=degree(row, "cp"),
        pipeline_model_parallel_size=degree(row, "pp"),
        virtual_pipeline_model_parallel_size=vpp,
        expert_model_parallel_size=degree(row, "ep"),
        expert_tensor_parallel_size=1 if "ETP=1" in row["notes"] else None,
        data_parallel_size=int(row["dp"]),
        tp_comm_overlap=tp > 1,
    )
    sequence = int(row["seq_len"])
    samples = sequence // PACKED_SEQUENCE if row["model"].endswith("SFT") else 1
    eight = row["precision"] == "FP8"
    release = row["source_path_or_table"].split("@")[0]
    config = JobConfig(
        seq_length=sequence // samples,
        micro_batch_size=int(row["mbs"]) * samples,
        global_batch_size=int(row["gbs"]) * samples,
        precision=Precision.FP8_DELAYED if eight else Precision.BF16,
        main_grads_dtype=DType.BF16,
        fp8_param_gather=eight,
        framework_version=_RELEASES[release],
    )
    gpus = int(row["num_gpus"])
    job = Job(model=model, layout=layout, config=config, gpu=load_gpu("H100"), num_gpus=gpus)
    of_release = f" {release}" if model.num_moe_experts else ""
    return Target(
        name=f"{row['model']} {gpus}x {row['precision']} TP{tp}{of_release}",
        table="dgxc_benchmarking",
        family=f"{row['model']} {row['precision']} TP{tp}{of_release}",
        group="grok1" if model.num_moe_experts else f"{model.hidden_size} x {model.num_layers}",
        source=f"NVIDIA/dgxc-benchmarking {row['source_path_or_table']}",
        job=job,
        setting=setting_of(job),
        seconds=float(row["step_time_s"]),
    )


def _model(name: str) -> ModelSpec:
    grok = _CUT.fullmatch(name)
    if grok is None:
        return load_model(_PRESETS[name])
    return replace(
        load_model("mixtral_8x7b"),
        name="grok1",
        num_layers=int(grok["layers"] or _GROK_LAYERS),
        hidden_size=6144,
        ffn_hidden_size=32768,
        moe_ffn_hidden_size=32768,
        num_attention_heads=48,
        vocab_size=131072,
        activation=Activation.GEGLU,
        moe_permute_fusion=False,
    )
