"""Megatron-LM's README: GPT 1.7B to 462B on 48 to 6,144 H100, weak scaling.

Micro batch, recompute, virtual pipeline and sequence parallelism are not stated. Assumed: one
sequence a micro batch, no recompute, sequence parallelism with TP, as many model chunks as the
layers allow, all overlap on (which the README says), flash attention, 16-bit gradients. So nothing
is fitted on these rows. Step times follow from TFLOP/s by Megatron-LM's own count of FLOPs
(training.py num_floating_point_operations: attention not halved, logits counted). The sizes ask for
an output layer of its own.
"""

from pathlib import Path
from typing import Final

from advisor.base.dtypes import DType
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from research.rows.row import PUBLISHED, Row, degree, read_rows, setting_of
from research.rows.targets import Target

_ASSUMED: Final = "micro batch, recompute and virtual pipeline are assumed"


def megatron_readme_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """Weak scaling; strong scaling is a range."""
    rows = read_rows(folder, "megatron_lm_readme_scaling")
    return tuple(_target(row) for row in rows if row["tflops_per_gpu"])


def flops_per_sequence(model: ModelSpec, seq_length: int) -> float:
    """Megatron-LM's count for multi-head attention and an MLP without a gate."""
    s, h, layers = seq_length, model.hidden_size, model.num_layers
    return 72 * layers * s * h * h * (1 + s / (6 * h) + model.vocab_size / (12 * layers * h))


def _target(row: Row) -> Target:
    layers, hidden, heads = int(row["layers"]), int(row["hidden"]), int(row["heads"])
    model = load_model(
        {
            "name": row["model"].lower().replace(" ", "_"),
            "base": "gpt3_175b",
            "num_layers": layers,
            "hidden_size": hidden,
            "ffn_hidden_size": 4 * hidden,
            "num_attention_heads": heads,
            "num_query_groups": heads,
            "kv_channels": hidden // heads,
            "vocab_size": int(row["vocab"]),
            "max_position_embeddings": int(row["seq_len"]),
            "share_embeddings_and_output_weights": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )
    tp, pp = degree(row, "tp"), degree(row, "pp")
    gpus, gbs, sequence = int(row["num_gpus"]), int(row["gbs"]), int(row["seq_len"])
    layout = ParallelLayout(
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=layers // pp if pp > 1 else 1,
        data_parallel_size=int(row["dp"]),
        tp_comm_overlap=tp > 1,
    )
    config = JobConfig(
        seq_length=sequence,
        micro_batch_size=1,
        global_batch_size=gbs,
        main_grads_dtype=DType.BF16,
    )
    job = Job(model=model, layout=layout, config=config, gpu=load_gpu("H100"), num_gpus=gpus)
    flops = gbs * flops_per_sequence(model, sequence) / gpus
    return Target(
        name=f"{row['model']} {gpus}xH100",
        table="megatron_lm_readme_scaling",
        family=row["model"],
        group="README scaling",
        source=row["source_path_or_table"],
        job=job,
        setting=setting_of(job),
        seconds=flops / (float(row["tflops_per_gpu"]) * 1e12),
        judged_only=_ASSUMED,
    )
