"""arXiv 2205.05198: a layer of the 22B model by setting (Table 4), and its step (Table 5).

fp16, unfused attention with the fused softmax kernel, dropout 0.1, Megatron's own layers.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.plan.recompute_plan import recomputes
from advisor.request.recipes import load_experiment
from research.rows.row import PUBLISHED, Row, read_rows, setting_of
from research.rows.targets import Quantity, Target

_SPECS = {"full": "full:uniform:1", "selective": "selective", "none": "none"}


def korthikanti_targets(folder: Path = PUBLISHED) -> tuple[Target, ...]:
    """The measured rows; formulae of Table 2 are no times."""
    rows = read_rows(folder, "korthikanti2022")
    measured = [row for row in rows if row["kind"].startswith("meas")]
    return tuple(target for row in measured for target in _targets(row))


def _targets(row: Row) -> Iterator[Target]:
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
    word = row["recompute"].split(" ")[0]
    target = Target(
        name=f"22B {row['source_path_or_table'][:7]} {word}"
        + (" + SP" if layout.sequence_parallel else ""),
        table="korthikanti2022",
        family=f"{row['source_path_or_table']} {row['recompute']}",
        group=row["source_path_or_table"][:7],
        source=f"arXiv 2205.05198 {row['source_path_or_table']}",
        job=job,
        setting=setting_of(job, _SPECS.get(word, "none")),
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
