"""Our number for each claim of docs/claims.md, as its third column prints it."""

from collections.abc import Callable

from advisor.answer.answer import Answer
from advisor.base.units import GIB
from tests.advisor.jobs import batches
from tests.seeds.walk import (
    advice,
    evaluation,
    layer_bytes,
    refused,
    refused_by_bridge,
    remarks_by_bridge,
    saved_share,
)

CORE, BOTH, FULL = "selective:core_attn", "selective:core_attn,mlp", "full:uniform:1"
UNFUSED, FLASH = ("model.attention_backend=unfused",), ("model.attention_backend=flash",)
_TP = 8  # of the jobs below: a layer's bytes over all its ranks


def llama(overrides: tuple[str, ...] = ()) -> Answer:
    """The guide's 64 x A100, in a layout that fits."""
    return advice(
        "llama3_70b",
        "64xA100",
        tensor_model_parallel_size=_TP,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=1,
        **batches(2048, 1, 64),
        overrides=overrides,
    )


def gpt(overrides: tuple[str, ...] = ()) -> Answer:
    """GPT-3 175B as the paper ran it: TP 8, sequence 2048, unfused attention."""
    return advice("gpt3_175b", "64xA100", overrides=overrides)


def h100(**fields: object) -> Answer:
    return advice("llama3_70b", "32xH100", **fields)


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def overhead(found: Answer, spec: str) -> str:
    return percent(evaluation(found, spec).recompute_overhead)


def reduction(found: Answer, spec: str) -> str:
    return f"{layer_bytes(found, 'none') / layer_bytes(found, spec):.1f}x"


def gpt_layer() -> float:
    return layer_bytes(gpt(), "none") * _TP / 1e9


def model_terabytes(found: Answer) -> str:
    return f"{layer_bytes(found, 'none') * _TP * 8 * found.job.model.num_layers / 1e12:.2f} TB"


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def context(seq_length: int) -> int:
    found = advice(
        "llama3_8b",
        "64xH100",
        **batches(seq_length, 1, 64),
        context_parallel_size=4,
        overrides=("model.max_position_embeddings=131072",),
    )
    return layer_bytes(found, "none")


def _tokens() -> str:
    rows = [evaluation(llama(), spec) for spec in (CORE, "none")]
    return f"{rows[0].tokens_per_second_per_gpu / rows[1].tokens_per_second_per_gpu:.2f}x"


def _fp8() -> tuple[str, ...]:
    peaks = [evaluation(h100(**f), "none").peak for f in ({"precision": "fp8_current"}, {})]
    return tuple(gib(peak.peak_reserved_bytes) for peak in peaks)


def _skill() -> str:
    found = h100(precision="fp8_current")
    peaks = [evaluation(found, s).peak.peak_allocated_bytes for s in (CORE, "selective:mlp")]
    return f"{(peaks[0] - peaks[1]) / 1e9:.1f} GB"


def _layernorm() -> str:
    rules = {r.setting.spec: r.rule for r in h100().rejected}
    return "nothing" if rules["selective:layernorm"] == "layernorm_on_te" else "something"


def _distributed() -> str:
    said = remarks_by_bridge(
        recompute_granularity="selective",
        recompute_modules=("mlp",),
        distribute_saved_activations=True,
        tensor_model_parallel_size=4,
    )
    return "ignored" if "distribute_ignored" in said else "obeyed"


def _empty() -> str:
    fields = {"recompute_granularity": "selective", "recompute_modules": ()}
    accepted = not refused_by_bridge(**fields)
    return "accepted" if accepted and remarks_by_bridge(**fields) else "refused"


NUMBERS: dict[str, Callable[[], tuple[str, ...]]] = {
    "core_attn_flash": lambda: (percent(saved_share(llama(), CORE)),),
    "core_attn_unfused": lambda: (percent(saved_share(llama(UNFUSED), CORE)),),
    "core_attn_gpt3": lambda: (percent(saved_share(gpt(), CORE)),),
    "selective_factor": lambda: (reduction(gpt(), CORE), reduction(llama(), CORE)),
    "gpt3_layer": lambda: (f"{gpt_layer():.1f} GB",),
    "gpt3_model": lambda: (f"{gpt_layer() * 96:.0f} GB",),
    "llama_model": lambda: (model_terabytes(llama()), model_terabytes(llama(UNFUSED))),
    "core_attn_overhead": lambda: (overhead(llama(), CORE), overhead(gpt(), CORE)),
    "core_attn_mlp_overhead": lambda: (overhead(llama(), BOTH),),
    "full_overhead": lambda: (overhead(llama(), FULL),),
    "uniform_four": lambda: (
        percent(saved_share(h100(), "full:uniform:4")),
        overhead(h100(), "full:uniform:4"),
        overhead(h100(), FULL),
    ),
    "full_factor": lambda: (reduction(h100(), FULL),),
    "larger_batch": lambda: (_tokens(),),
    "fp8_memory": _fp8,
    "long_context": lambda: (f"{context(32768) / context(2048):.1f}x",),
    "layernorm": lambda: (_layernorm(),),
    "skill_mlp": lambda: (_skill(),),
    "distribute_selective": lambda: (_distributed(),),
    "empty_list": lambda: (_empty(),),
    "shorthand": lambda: (
        "refused" if "stray_word" in refused("--recompute-activations selective") else "accepted",
    ),
}
"""By the id of the claim: what must stand in its third column."""
