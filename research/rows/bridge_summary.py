"""Megatron Bridge's performance summary: tuned recipes on H100 to GB300, pretraining and SFT.

The rows carry the workload configuration of their release, which is in force. Step times follow
from tokens a second; two releases print these rounded to powers of two, and there they follow from
TFLOP/s and the FLOPs a token that the release before printed for the same model. LoRA is not
modelled. FP8 without a word is current scaling (the recipes' names). SFT packs short samples.
"""

from pathlib import Path
from statistics import median
from typing import Final

from advisor.base.dtypes import Precision
from advisor.base.fields import split_key_values
from research.rows.bridge_runs import BridgeRun, bridge_job
from research.rows.row import (
    PACKED_SEQUENCE,
    PUBLISHED,
    Row,
    batch_of,
    degree,
    read_rows,
    seconds_of_tokens,
    setting_of,
    spec_of,
)
from research.rows.targets import Target

MODELS: Final = {
    "DeepSeekV3": "deepseek_v3",
    "DeepSeekV3 (w/ MTP)": "deepseek_v3",
    "GPT OSS 120B": "gpt_oss_120b",
    "LLAMA3_8B": "llama3_8b",
    "LLAMA3_70B": "llama3_70b",
    "Nemotron_3_Nano": "nemotron3_nano_30b_a3b",
    "Qwen3_30B_a3B": "qwen3_30b_a3b",
}
RELEASES: Final = {
    "25.09": "0.2",  # v0.1.0rc4; the oldest of which anything is known here is 0.2
    "25.11": "0.2",
    "26.02": "0.3",
    "26.02.01": "0.3",
    "26.04": "0.4",
    "26.04.01": "0.4",
    "26.06": "0.5",
    "26.06.01": "0.5",
    "26.08": "0.6",
}
"""NeMo container -> Bridge."""
_ROUNDED: Final = {"26.04.01": "26.04", "26.06.01": "26.06"}
"""Releases that round tokens a second, and the one before that does not."""
_PRECISIONS: Final = {
    "BF16": Precision.BF16,
    "FP8": Precision.FP8_CURRENT,
    "FP8-CS": Precision.FP8_CURRENT,
    "MXFP8": Precision.MXFP8,
    "FP8-MX": Precision.MXFP8,
    "NVFP4": Precision.NVFP4,
}
_TASKS: Final = {"Pre-Training": "pretrain", "SFT": "sft"}
_SHARDED: Final = "FSDP group"
_FOOTNOTE: Final = (
    "the table lacks the footnote of this row, and the previous release was 58 % faster"
)
_UNLIKE_ITS_RECIPE: Final = (
    "the recipe at the release's tag has another layout than the row, so what ran is not known"
)
_UNMOVED: Final = (
    "neither the dispatcher nor overlap changed the step time, so what limits it is unknown"
)


def bridge_summary_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Every row of pretraining and SFT."""
    rows = [row for row in read_rows(folder, "mbridge_perf_summary") if row["task"] in _TASKS]
    return tuple(_target(row, step_seconds(row, rows)) for row in rows)


def step_seconds(row: Row, rows: list[Row]) -> float:
    """Seconds of a step: tokens of the global batch over tokens a second."""
    before = _ROUNDED.get(row["container"])
    if before is None:
        return seconds_of_tokens(row)
    same = [
        float(other["derived_gflop_per_token"])
        for other in rows
        if other["container"] == before and _work(other) == _work(row)
    ]
    tokens = int(row["gbs"]) * int(row["seq_len"]) / int(row["num_gpus"])
    return tokens * median(same) / (float(row["tflops_per_gpu"]) * 1000)


def _work(row: Row) -> tuple[str, ...]:
    """What FLOPs a token depend on, by this source's count."""
    precision = row["precision"] if row["model"].startswith("GPT OSS") else ""
    return row["model"], row["seq_len"], row["task"], precision


def _target(row: Row, seconds: float) -> Target:
    extras = split_key_values(filter(None, row["recipe_extras"].split("; ")))
    if row["zero_or_fsdp"].startswith(_SHARDED):
        extras["use_megatron_fsdp"] = "True"
    packed = row["task"] == "SFT"
    run = BridgeRun(
        model=MODELS[row["model"]],
        gpus=f"{row['num_gpus']}x{row['gpu'].removeprefix('DGX-')}",
        release=RELEASES[row["container"]],
        precision=_PRECISIONS[row["precision"]],
        fields={
            **batch_of(row),
            "tensor_model_parallel_size": degree(row, "tp"),
            "sequence_parallel": row["sp"] == "1",
            "pipeline_model_parallel_size": degree(row, "pp"),
            "virtual_pipeline_model_parallel_size": degree(row, "vpp"),
            "context_parallel_size": degree(row, "cp"),
            "expert_model_parallel_size": degree(row, "ep"),
            "data_parallel_size": int(row["dp"]),
            **({"mean_packed_length": PACKED_SEQUENCE} if packed else {}),
        },
        extras=extras,
        task=_TASKS[row["task"]],
    )
    done = bridge_job(run)
    spec = spec_of(row["recompute"])
    offloaded = extras.get("cpu_offloading_num_layers")
    if offloaded:
        spec += f"+cpu_offloading={offloaded}"
    slower = row["container"] == "26.06.01" and row["model"] == "GPT OSS 120B"
    unmoved = row["model"] == "GPT OSS 120B" and (row["gpu"], row["precision"]) == (
        "DGX-GB200",
        "BF16",
    )
    unlike = _UNLIKE_ITS_RECIPE if row["recipe_match"].startswith("NOT exact") else ""
    what = " ".join((row["model"], *run.gpus.split("x")[::-1]))
    layout = " ".join(f"{name.upper()}{degree(row, name)}" for name in ("tp", "pp", "vpp", "ep"))
    task = "" if run.task == "pretrain" else f" {row['task']}"
    how = f"{layout} MBS{row['mbs']} {row['recipe_extras']} {spec}"
    return Target(
        name=f"{what} {row['precision']}{task} {row['container']}",
        table="mbridge_perf_summary",
        family=f"{what} {run.precision}{task} {how}",
        group=f"Bridge {run.model}",
        source=f"Megatron Bridge {row['source_path_or_table']}",
        job=done.job,
        setting=setting_of(done.job, spec),
        seconds=seconds,
        options=done.options,
        judged_only=_FOOTNOTE if slower else _UNMOVED if unmoved else unlike,
        unexplained=unmoved,
        comparable=not (slower or unlike),
    )
