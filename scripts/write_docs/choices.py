"""Which setting wins on which job, and the questions that lead to it: all of it computed."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from advisor.answer.answer import Answer
from advisor.answer.evaluation import Evaluation
from advisor.api.answering import answer_to
from advisor.api.keywords import given_by, job_of
from advisor.plan.recompute_plan import Setting, recomputes
from advisor.report.job_changes import degrees_apart, options_apart

GIB: Final = 2**30
PUBLISHED: Final = (
    ("llama3_8b", "8xH100"),
    ("llama3_70b", "32xH100"),
    ("llama3_70b", "32xB200"),
    ("gpt3_175b", "64xA100"),
    ("nemotron4_340b", "128xH100"),
    ("mixtral_8x7b", "64xH100"),
    ("mixtral_8x22b", "128xH100"),
    ("qwen3_30b_a3b", "16xH100"),
    ("qwen3_235b_a22b", "256xH100"),
    ("gpt_oss_120b", "64xH100"),
    ("deepseek_v3", "1024xH100"),
    ("deepseek_v3", "256xGB200"),
    ("kimi_k2", "1024xH100"),
)
"""Jobs whose layout is a published recipe's."""
GIVEN: Final[dict[str, dict[str, Any]]] = {
    "llama3_8b": {"tp": 1, "pp": 1, "cp": 1, "global_batch_size": 128},
    "llama3_70b": {
        "tp": 4,
        "pp": 4,
        "vpp": 5,
        "cp": 1,
        "global_batch_size": 32,
        "overrides": ("job.main_grads_dtype=bf16",),
    },
}
"""What recipes for other lengths of the sequence would change."""
GROWING: Final = tuple(
    (model, gpus, tokens)
    for model, gpus in (("llama3_8b", "8xH100"), ("llama3_70b", "32xH100"))
    for tokens in (4096, 8192, 16384, 32768, 65536)
)
"""The same job at longer and longer sequences."""
STACKS: Final = ("torchtitan", "fsdp2", "deepspeed", "huggingface")


class Choice(NamedTuple):
    """A job, no recompute on it, the setting that the advisor puts first, and what it finds near
    the job that is faster."""

    job: str
    none: Evaluation
    best: Evaluation
    answer: Answer

    @property
    def gain(self) -> float:
        """Share of the step time that the fastest found saves; 0 where nothing faster is found,
        or nothing fits otherwise."""
        found = self.answer.fastest_found
        return (found.gain or 0.0) if found else 0.0

    @property
    def found(self) -> str:
        """Gain, setting, degrees and count of changed options of the fastest found, or a dash."""
        if self.answer.fastest_found is None:
            return "—"
        one = self.answer.fastest_found.candidate.evaluation
        degrees = degrees_apart(one.job, self.answer.job)
        options = len(options_apart(one.job, self.answer.job))
        counted = [f"{options} option{'s' * (options > 1)}"] if options else []
        gain = f"-{100 * self.gain:.0f} %" if self.gain else "fits"
        return f"{gain}: {', '.join([f'`{one.setting.spec}`', *degrees, *counted])}"

    @property
    def kind(self) -> str:
        """The leaf of the tree that it ends in: none, selective, full:block, full:uniform; empty
        where nothing fits."""
        if not self.best.fits:
            return ""
        head, _, rest = self.best.setting.spec.partition(":")
        return f"full:{rest.partition(':')[0]}" if head == "full" and rest else head


@cache
def _choice(model: str, gpus: str, name: str, given: tuple[tuple[str, Any], ...]) -> Choice:
    answer = answer_to(job_of(given_by({"model": model, "gpus": gpus, **dict(given)}))[0])
    found = [one.evaluation for one in answer.candidates]
    none = next(one for one in found if one.setting.spec == "none")
    return Choice(name, none, found[0], answer)


def published() -> tuple[Choice, ...]:
    """A choice for each job with a published layout."""
    return tuple(
        _choice(model, gpus, f"`{model}`, {_count(gpus)}", ()) for model, gpus in PUBLISHED
    )


def growing() -> tuple[Choice, ...]:
    """A choice for each length of the sequence; nothing else differs between those of a model."""
    return tuple(
        _choice(
            model,
            gpus,
            f"`{model}`, {_count(gpus)}, {tokens:,} tokens",
            (*GIVEN[model].items(), ("micro_batch_size", 1), ("seq_length", tokens)),
        )
        for model, gpus, tokens in GROWING
    )


def stacks() -> tuple[Choice, ...]:
    """Llama 3 8B on 8 H100 in the frameworks that shard with FSDP or ZeRO."""
    return tuple(
        _choice("llama3_8b", "8xH100", f"`{name}`", (("framework", name),)) for name in STACKS
    )


def _count(gpus: str) -> str:
    count, _, name = gpus.partition("x")
    return f"{count} {name}"


def table(choices: Callable[[], tuple[Choice, ...]], head: str) -> str:
    """A row a job: no recompute, the choice, and what the choice costs."""
    lines = [
        f"| {head} | `none` needs | `none` fits | first choice | its peak | its overhead "
        "| fastest found |",
        "|---|--:|--:|---|--:|--:|---|",
    ]
    for one in choices():
        none = f"{one.none.peak_reserved_bytes / GIB:.1f} of {one.none.budget_bytes / GIB:.1f} GiB"
        best, likely = one.best, _likely(one.none.fit_probability)
        if best.fits:
            chosen = f"`{best.setting.spec}`"
            peak = f"{best.peak_reserved_bytes / GIB:.1f} GiB"
            more = f"{100 * best.recompute_overhead:+.1f} %"
            cost = more if best.setting.spec != "none" else "—"
        else:
            chosen, peak, cost = "nothing fits", "—", "—"
        lines.append(
            f"| {one.job} | {none} | {likely} | {chosen} | {peak} | {cost} | {one.found} |"
        )
    return "\n".join(lines)


def nearby() -> str:
    """On how many of all jobs something faster is found near the job, and by how much."""
    jobs = (*published(), *growing(), *stacks())
    fitting = [one for one in jobs if one.kind]
    faster = [one for one in fitting if one.gain]
    rescued = [one for one in jobs if not one.kind and one.answer.fastest_found]
    kept = [one for one in fitting if one.kind == "none"]
    more = [one for one in kept if one.gain and recomputes(_setting(one))]
    low, high = (f"{100 * pick(one.gain for one in faster):.0f}" for pick in (min, max))
    near, others = sum(bool(one.gain) for one in kept), len(jobs) - len(fitting)
    return (
        f"Something fits on {len(fitting)} of these {len(jobs)} jobs. Near {len(faster)} of them "
        f"the answer finds a job with {low} to {high} % less time per step. Near {len(rescued)} of "
        f"the {others} others it finds a job that fits. `none` is the first choice on {len(kept)} "
        f"jobs: near {near} of them something faster is found, and {len(more)} of these faster "
        "jobs recompute."
    )


def _setting(one: Choice) -> Setting:
    found = one.answer.fastest_found
    return (found.candidate.evaluation if found else one.best).setting


def _likely(probability: float) -> str:
    percent = 100 * probability
    return "<1 %" if percent < 1 else ">99 %" if percent > 99 else f"{percent:.0f} %"
