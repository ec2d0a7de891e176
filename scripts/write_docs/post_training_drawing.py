"""docs/post_training.svg: the questions of fine-tuning and reinforcement learning, each with what
its answer changes on one job."""

from typing import Any, Final, NamedTuple

from advisor.answer.evaluation import Evaluation
from advisor.api.answering import answer_to
from advisor.base.units import GIB
from advisor.request.request import Request
from scripts.write_docs.choice_drawing import BOX, LEAF, LEFT, ROW, WIDTH, arrow
from scripts.write_docs.svg import drawing, rect, text


class Question(NamedTuple):
    """Two lines of a question, the options of its answer, why; a job, and options that it has with
    and without the answer."""

    asked: tuple[str, str]
    options: str
    why: str
    job: str
    request: dict[str, Any]
    ways: dict[str, tuple[str, ...]]


_EIGHT: Final = {"gpus": "8xH100", "framework": "huggingface", "recompute": ("full",)}
_ROLLOUT: Final = ("rl.algorithm=grpo", "rl.engine=vllm", "rl.gpu_memory_utilization=0.6")
_ADAPTER: Final = ("tuning.adapter=lora", "tuning.base_weights=nf4")
QUESTIONS: Final = (
    Question(
        ("Do rollouts use the GPUs", "of the training?"),
        "rl.engine=vllm rl.sleep_level=2",
        "Every phase must fit. Let the engine sleep; if that is too little, offload.",
        "GRPO of qwen3_8b, 8 H100",
        {"model": "qwen3_8b", **_EIGHT},
        {
            "awake": (*_ROLLOUT, "rl.sleep_level=0"),
            "asleep": (*_ROLLOUT, "rl.sleep_level=2"),
        },
    ),
    Question(
        ("Are the logits the largest part", "of the peak?"),
        "head.implementation=NAME",
        "Take a head in chunks, or a fused one, that your framework has.",
        "qwen3_4b, 16,384 tokens, 8 H100",
        {"model": "qwen3_4b", "seq_length": 16_384, **_EIGHT},
        {
            "transformers": ("head.implementation=transformers",),
            "liger": ("head.implementation=liger",),
        },
    ),
    Question(
        ("Do the samples have several", "lengths?"),
        "--lengths L --max-tokens-per-gpu N",
        "The longest pack decides. --solve tokens finds the largest N that fits.",
        "llama3_8b, at most 8,192 tokens, 8 H100",
        {"model": "llama3_8b", "lengths": "p50=900,max=8192", "global_batch_size": 256, **_EIGHT},
        {
            "N 32,768": ("samples.token_budget=32768",),
            "N 8,192": ("samples.token_budget=8192",),
        },
    ),
    Question(
        ("Does it fit now, with a setting", "of the first drawing?"),
        "no adapter",
        "Train all weights.",
        "qwen3_8b, 8 H100",
        {"model": "qwen3_8b", **_EIGHT},
        {"all weights": (), "LoRA": _ADAPTER[:1]},
    ),
    Question(
        ("All weights are too much.", ""),
        "tuning.adapter=lora tuning.base_weights=nf4",
        "Train an adapter (LoRA); if that is too much, over 4-bit weights (QLoRA).",
        "qwen3_8b, 1 L40S",
        {"model": "qwen3_8b", **_EIGHT, "gpus": "1xL40S"},
        {"all weights": (), "LoRA": _ADAPTER[:1], "QLoRA": _ADAPTER},
    ),
)


def post_training_drawing() -> str:
    """A question below the other, its answer next to it."""
    parts, said = [], []
    for number, question in enumerate(QUESTIONS):
        y, last = 8 + ROW * number, number == len(QUESTIONS) - 1
        first, second = question.asked
        rows = {way: _row(question, given) for way, given in question.ways.items()}
        sizes = ", ".join(f"{way} {row.peak_reserved_bytes / GIB:.1f}" for way, row in rows.items())
        sizes += f" of {min(row.budget_bytes for row in rows.values()) / GIB:.1f} GiB"
        said.append(f"{question.options}: {sizes}")
        parts += [
            rect(LEFT, y + 8, BOX, 60, "box"),
            text(LEFT + 14, y + (34 if second else 43), first, "bold"),
            text(LEFT + 14, y + 53, second, "bold"),
            arrow(LEFT + BOX, y + 38, LEAF - 4, y + 38),
            text(LEFT + BOX + 22, y + 30, "" if last else "yes", "muted"),
            rect(LEAF, y, WIDTH - LEAF - 8, 94, "leaf"),
            text(LEAF + 14, y + 22, question.options, "bold mono"),
            text(LEAF + 14, y + 42, question.why),
            text(LEAF + 14, y + 62, f"{question.job}, full recompute:", "muted"),
            text(LEAF + 14, y + 82, sizes, "muted"),
        ]
        if not last:
            goes_on = "no, or done" if number < len(QUESTIONS) - 2 else "no"
            parts.append(arrow(LEFT + 135, y + 68, LEFT + 135, y + ROW + 4))
            parts.append(text(LEFT + 145, y + 92, goes_on, "muted"))
    title = "What to change first in fine-tuning and reinforcement learning"
    return drawing(WIDTH, 8 + ROW * (len(QUESTIONS) - 1) + 100, title, "; ".join(said), parts)


def _row(question: Question, given: tuple[str, ...]) -> Evaluation:
    """The job as it stands, whether it fits or not."""
    answer = answer_to(Request(**question.request, overrides=given, quick=True))
    return answer.candidates[0].evaluation
