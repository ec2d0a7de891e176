"""What measured runs say of the answer, and what is to be measured next, in words."""

from functools import partial
from typing import Final

from advisor.answer.answer import LearnedNote, Toss
from advisor.base.units import counted
from advisor.report.blocks import Block, Fitted, Indented, command_lines, group

_SHOWN: Final = 5e-4
_TERMS: Final = {
    "base": "step",
    "recompute": "replays",
    "communication": "communication",
    "host": "host",
    "offload": "offload",
    "states": "states",
    "activations": "activations",
    "unused": "reserved but unallocated",
    "outside": "context and communicators",
}
_SCATTERED: Final = {"step_time": "step times", "memory": "bytes"}


def learned_words(learned: LearnedNote) -> list[str]:
    """``12 trials of runs/a``, for which jobs they hold, by how much they move what."""
    said = [f"{counted(learned.trials, 'trial')} of {', '.join(learned.sources)}"]
    if learned.left_out:
        said.append(f"left out: {', '.join(learned.left_out)}")
    if not learned.within:
        return [*said, f"not used for this job: {learned.outside}"]
    moved = [
        f"{_TERMS[name]} {term.mean * 100:+.1f} ±{term.sigma * 100:.1f} %"
        for name, term in {**learned.step_time, **learned.memory}.items()
        if abs(term.mean) > _SHOWN and term.sigma < term.shipped_sigma * 0.9  # runs say more
    ]
    unused = [f"not used for row 1: {learned.outside}"] if learned.outside else []
    far = [f"{_SCATTERED[name]} {by:.0f} times" for name, by in learned.scatter.items() if by > 1]
    doubt = (
        f"doubtful: these runs scatter more than usual ({', '.join(far)} as much), so "
        "bands are wider by this factor; check that they are one job and were undisturbed"
    )
    return [*said, f"used for {learned.within}", *unused, *moved, *([doubt] if far else [])]


def toss_block(toss: Toss) -> Block:
    """Two rows to measure before one is chosen, and the command that does it, with the options that
    it has otherwise; or why there is none."""
    first, second = toss.ranks
    head = f"Measure rows {first} and {second}: {toss.why}."
    lines = toss.command.split(" && ") if toss.command else []
    commands = [Indented(Fitted(partial(command_lines, line)), 2) for line in lines]
    extras = [f"  ({toss.beside})"] if toss.beside else []
    return group(head, *commands, *extras)
