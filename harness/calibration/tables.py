"""Jobs behind the rows of results/published that times are fitted on.

What a row does not say is taken from the recipe of the same source, and said here.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.frameworks.registry import adapter_of
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.options import CrossEntropyFusion, TransformerImpl
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.request.experiments import load_experiment
from harness.calibration.targets import Quantity, Target

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"

Row = dict[str, str]

_DGXC_MODELS = {
    "Llama 3.1 8B": "llama3.1_8b",
    "Nemotron-4 15B": "nemotron4_15b",
    "Llama 3 8B SFT": "llama3_8b",
}
_PACKED_SEQUENCE = 256
"""Tokens of a fine-tuning sample (SQuAD, rounded up to a power of two). NeMo packs samples into
rows of 4,096 tokens, and attention stays within a sample: the job is one of short sequences."""


def a100_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """arXiv 2205.05198: a layer of the 22B model by setting (Table 4), and its step (Table 5).

    fp16, unfused attention with the fused softmax kernel, dropout 0.1, Megatron's own layers.
    """
    measured = [row for row in _rows(folder, "korthikanti2022") if row["kind"].startswith("meas")]
    return tuple(target for row in measured for target in _a100(row))


def _a100(row: Row) -> Iterator[Target]:
    experiment = load_experiment("gpt3_22b_8xa100")
    model = replace(
        experiment.configure(load_model("gpt3_22b")),
        attention_softmax_in_fp32=False,
        transformer_impl=TransformerImpl.LOCAL,
    )
    layout = replace(experiment.layout, sequence_parallel=row["sp"] == "1")
    job = Job(
        model=model, layout=layout, config=experiment.config, gpu=load_gpu("A100"), num_gpus=8
    )
    target = Target(
        name=f"22B {row['source_path_or_table'][:7]} {row['recompute'].split(' ')[0]}"
        + (" + SP" if layout.sequence_parallel else ""),
        family=f"{row['source_path_or_table']} {row['recompute']}",
        group=row["source_path_or_table"][:7],
        source=f"arXiv 2205.05198 {row['source_path_or_table']}",
        job=job,
        setting=_setting(job, row["recompute"].split(" ")[0]),
        seconds=float(row["step_time_s"] or 0.0),
    )
    if target.seconds:
        yield target
        return
    layer = float(row["fwd_bwd_ms"]) / 1000
    yield replace(target, seconds=layer, quantity=Quantity.LAYER)
    if not recomputes(target.setting):
        yield replace(
            target,
            name=f"{target.name}, forward",
            family=f"{target.family} forward",
            seconds=float(row["fwd_ms"]) / 1000,
            quantity=Quantity.LAYER_FORWARD,
        )


_SPECS = {"full": "full:uniform:1", "selective": "selective"}


def _setting(job: Job, word: str = "") -> Setting:
    """What a row calls its recompute, as its framework runs it."""
    return adapter_of(job.config.framework).parse(_SPECS.get(word, "none")).promoted


def h100_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """NVIDIA/dgxc-benchmarking, without the LoRA rows.

    NeMo's recipes of these models: 16-bit gradient buffer, fused cross entropy, overlapped gradient
    and parameter communication, user-buffer overlap where TP > 1, delayed scaling for FP8.
    """
    rows = _rows(folder, "dgxc_benchmarking")
    return tuple(_h100(row) for row in rows if row["model"] in _DGXC_MODELS)


def _h100(row: Row) -> Target:
    model = replace(
        load_model(_DGXC_MODELS[row["model"]]), cross_entropy_fusion=CrossEntropyFusion.NATIVE
    )
    tp = int(row["tp"])
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        context_parallel_size=int(row["cp"]),
        data_parallel_size=int(row["dp"]),
        tp_comm_overlap=tp > 1,
    )
    sequence = int(row["seq_len"])
    samples = sequence // _PACKED_SEQUENCE if row["model"].endswith("SFT") else 1
    config = JobConfig(
        seq_length=sequence // samples,
        micro_batch_size=int(row["mbs"]) * samples,
        global_batch_size=int(row["gbs"]) * samples,
        precision=Precision.FP8_DELAYED if row["precision"] == "FP8" else Precision.BF16,
        main_grads_dtype=DType.BF16,
    )
    gpus = int(row["num_gpus"])
    job = Job(model=model, layout=layout, config=config, gpu=load_gpu("H100"), num_gpus=gpus)
    return Target(
        name=f"{row['model']} {gpus}x {row['precision']} TP{tp}",
        family=f"{row['model']} {row['precision']} TP{tp}",
        group=f"{model.hidden_size} x {model.num_layers}",
        source=f"NVIDIA/dgxc-benchmarking {row['source_path_or_table']}",
        job=job,
        setting=_setting(job),
        seconds=float(row["step_time_s"]),
    )


def b200_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """MooreThreads/SimuMax: 12 layers of Llama-3 70B; no overlap, fp32 gradients, TE's loss."""
    return tuple(_b200(row) for row in _rows(folder, "simumax_b200"))


def _b200(row: Row) -> Target:
    model = replace(
        load_model("llama3_70b"),
        num_layers=int(row["layers"]),
        cross_entropy_fusion=CrossEntropyFusion.TE,
    )
    tp, pp = int(row["tp"]), int(row["pp"])
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_model_parallel_size=pp,
        data_parallel_size=int(row["dp"]),
        overlap_grad_reduce=False,
        overlap_param_gather=False,
    )
    config = JobConfig(
        seq_length=int(row["seq_len"]),
        micro_batch_size=int(row["mbs"]),
        global_batch_size=int(row["gbs"]),
    )
    name = f"70B/12 TP{tp} PP{pp} {row['mbc']} microbatches"
    gpus = int(row["num_gpus"])
    job = Job(model=model, layout=layout, config=config, gpu=load_gpu("B200"), num_gpus=gpus)
    return Target(
        name=name,
        family=name,
        group=f"TP{tp} PP{pp}",
        source=row["source_path_or_table"].split(", case ")[0],
        job=job,
        setting=_setting(job),
        seconds=float(row["step_time_s"]),
    )


def _rows(folder: Path, name: str) -> list[Row]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
