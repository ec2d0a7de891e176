"""docs/choose.svg: the questions that lead to a setting, with the jobs that end at each answer."""

from collections.abc import Iterator
from typing import Final

from scripts.write_docs.choices import Choice, growing, published
from scripts.write_docs.svg import drawing, rect, text

QUESTIONS: Final = (
    (
        "none",
        "Does it fit without recompute?",
        "none",
        "Keep everything: on this job recompute only costs time.",
    ),
    (
        "selective",
        "Are some modules enough, and",
        "selective:MODULES",
        "Recompute what is large and quickly made.",
    ),
    (
        "full:block",
        "Do N whole layers of each chunk",
        "full:block:N",
        "Recompute the fewest layers that make it fit.",
    ),
    (
        "full:uniform",
        "Does it fit when every layer is",
        "full:uniform:N",
        "Recompute every layer, as a last resort.",
    ),
)
SECOND_LINES: Final = ("", "faster than whole layers?", "make it fit?", "recomputed?")
NOTHING: Final = (
    "No setting is enough.",
    "another job",
    "Change the layout, the micro batch or the GPUs.",
)
LEFT, BOX, LEAF, ROW, WIDTH = 8, 262, 330, 112, 860
MOST: Final = 2
"""Jobs that a leaf names; it counts the others."""


def choice_drawing() -> str:
    """A question below the other, its answer next to it."""
    jobs = (*published(), *growing())
    parts = []
    for number, (kind, question, setting, why) in enumerate(QUESTIONS):
        y = 8 + ROW * number
        parts += [
            rect(LEFT, y + 8, BOX, 60, "box"),
            text(LEFT + 14, y + (34 if SECOND_LINES[number] else 43), question, "bold"),
            text(LEFT + 14, y + 53, SECOND_LINES[number], "bold"),
            arrow(LEFT + BOX, y + 38, LEAF - 4, y + 38),
            text(LEFT + BOX + 22, y + 30, "yes", "muted"),
            arrow(LEFT + 135, y + 68, LEFT + 135, y + ROW + 4),
            text(LEFT + 145, y + 92, "no", "muted"),
            *_leaf(y, setting, why, [job for job in jobs if job.kind == kind]),
        ]
    y = 8 + ROW * len(QUESTIONS)
    left = [job for job in jobs if not job.kind]
    parts += [rect(LEFT, y + 8, BOX, 60, "box"), text(LEFT + 14, y + 43, NOTHING[0], "bold")]
    parts += [arrow(LEFT + BOX, y + 38, LEAF - 4, y + 38), *_leaf(y, *NOTHING[1:], left)]
    title = "Which recompute setting is the fastest that fits"
    return drawing(WIDTH, y + 100, title, _words(jobs), parts)


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A line with a head, to the right or down."""
    head = "l-7,-4 m7,4 l-7,4" if to_y == y else "l-4,-7 m4,7 l4,-7"
    return f'<path d="M{x:g},{y:g} L{to_x:g},{to_y:g} {head}" class="arrow"/>'


def _leaf(y: float, setting: str, why: str, jobs: list[Choice]) -> Iterator[str]:
    yield rect(LEAF, y, WIDTH - LEAF - 8, 94, "leaf")
    yield text(LEAF + 14, y + 22, setting, "bold mono")
    yield text(LEAF + 14, y + 42, why)
    yield text(
        LEAF + 14, y + 62, f"{len(jobs)} of the jobs below{_cost(jobs)}{_near(jobs)}", "muted"
    )
    names = [job.job.replace("`", "") for job in jobs[:MOST]]
    shown = " · ".join(_short(name) for name in names)
    more = f" · {len(jobs) - MOST} more" if len(jobs) > MOST else ""
    yield text(LEAF + 14, y + 82, shown + more, "muted")


def _short(name: str) -> str:
    """A job's name with its GPUs, or with its length where lengths are compared."""
    model, gpus, *tokens = name.split(", ")
    return f"{model}, {tokens[0]}" if tokens else f"{model}, {gpus}"


def _cost(jobs: list[Choice]) -> str:
    costs = sorted(100 * job.best.recompute_overhead for job in jobs if job.kind)
    if not costs or not costs[-1]:
        return ""
    low, high = f"{costs[0]:.1f}", f"{costs[-1]:.1f}"
    return f", steps {low} to {high} % longer" if low != high else f", steps {low} % longer"


def _near(jobs: list[Choice]) -> str:
    found = sum(job.answer.fastest_found is not None for job in jobs)
    return f"; {found} with a faster job nearby" if found and jobs[0].kind else ""


def _words(jobs: tuple[Choice, ...]) -> str:
    """The drawing in words: what each job ends in."""
    chosen = (job.best.setting.spec if job.kind else "nothing fits" for job in jobs)
    names = (job.job.replace("`", "") for job in jobs)
    return "; ".join(f"{name}: {spec}" for name, spec in zip(names, chosen, strict=True)) + "."
