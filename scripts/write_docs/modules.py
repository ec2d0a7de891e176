"""A row a recompute setting: what a layer keeps, what runs again, what the job takes."""

from typing import Final

from scripts.write_docs.kept import Row, columns

DENSE: Final = (
    ("llama3_70b", "32xH100"),
    ("none", "selective:core_attn", "selective:mlp", "full:uniform:1"),
)
EXPERTS: Final = (
    ("deepseek_v3", "1024xH100"),
    (
        "none",
        "selective:core_attn",
        "selective:moe_act",
        "selective:mla_up_proj",
        "selective:moe",
        "full:uniform:1",
    ),
)
MIB, GIB = 2**20, 2**30
MOST: Final = 4
"""Operators that a cell names one by one."""


def table(case: tuple[tuple[str, str], tuple[str, ...]]) -> str:
    """What the settings come to on the job's published layout."""
    job, settings = case
    lines = [
        "| setting | one layer keeps | operators that run again | peak per GPU | step time |",
        "|---|--:|---|--:|--:|",
    ]
    for column in columns(*job, settings):
        evaluation = column.evaluation
        step = f"{evaluation.step_time_seconds:.2f} s"
        if evaluation.recompute_overhead:
            step += f", {100 * evaluation.recompute_overhead:+.1f} %"
        peak = f"{evaluation.peak.peak_reserved_bytes / GIB:.1f} GiB"
        kept = f"{column.kept / MIB:.1f} MiB"
        lines.append(f"| `{column.setting}` | {kept} | {_again(column.rows)} | {peak} | {step} |")
    return "\n".join(lines)


def first_stage() -> str:
    """How the activations of the drawing's worst rank multiply."""
    (none, *_) = columns(*DENSE[0], DENSE[1])
    stage = none.evaluation.peak
    activations = stage.memory_bytes.activations
    return (
        f"- one layer of Llama 3 70B keeps {none.kept / MIB:.1f} MiB on each GPU;\n"
        f"- pipeline stage {stage.stage} keeps {activations // none.kept} times as much at its "
        "peak: its layers times the microbatches in flight;\n"
        f"- these activations take {activations / GIB:.1f} GiB of the "
        f"{stage.peak_reserved_bytes / GIB:.1f} GiB that the rank reserves at its peak."
    )


def _again(rows: tuple[Row, ...]) -> str:
    names = [f"`{row.operator}`" for row in rows if row.again]
    if len(names) == len(rows) - 1:
        return "all of the layer"
    if len(names) > MOST:
        return f"{names[0]} to {names[-1]}: {len(names)} operators"
    return ", ".join(names) or "—"
