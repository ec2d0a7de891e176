"""`harness campaign`: the most valuable measurements first, within a time budget."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from advisor.errors import UserError
from advisor.reader import show
from advisor.units import nearest_names
from harness.campaign.execute import Executor
from harness.campaign.journal import Attempt, Outcome
from harness.campaign.plan import Campaign, load_campaign
from harness.commands.calibrate import duration
from harness.files import write_atomic
from harness.signals import Stop, StopSignals

FAILED: Final = 4
CALIBRATED: Final = "calibrated"
"""A --config-dir that items name before anything has been calibrated."""
HELP: Final = """\
harness campaign [NAME|FILE] [--budget 8min] [--out DIR]

Runs the items of a campaign, the most valuable first, and writes each result at once. What is done
on this machine is not done again; what the budget cut short goes on with the same command.

  harness campaign cpu --budget 3min
  harness campaign h200 --budget 8min --out results/measured/h200

  NAME            a file of configs/campaign (default: h200), or any YAML file of that form
  --budget TIME   30s, 8min (default), 1h
  --out DIR       default: campaign/NAME. Holds environment.json, campaign.jsonl (what was done),
                  logs/, and what the items write: runs/, calibrated/, rehearsals/
  --config-dir DIR

Exit codes: 0 all items are done, 2 the request is wrong, 3 something is left for another call,
4 an item failed (its log says why), 130 interrupted: what is finished is kept.
"""
_LEFT: Final = 3
_FLAGS: Final = ("--budget", "--out", "--config-dir", "--help")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    name: str = "h200"
    budget_seconds: float = 480.0
    out: Path | None = None
    config_dir: Path | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return 0
    options = parse(argv)
    campaign = load_campaign(options.name, options.config_dir)
    out = (options.out or Path("campaign") / Path(options.name).stem).resolve()
    (out / CALIBRATED).mkdir(parents=True, exist_ok=True)
    executor = Executor(
        out=out, environment=record_environment(out), budget_seconds=options.budget_seconds,
        say=_say,
    )  # fmt: skip
    try:
        with StopSignals():
            attempts = tuple(executor.run(campaign))
    except Stop as stop:
        _say(f"stopped; the same command goes on, in {out}")
        return stop.exit_code
    print(page(campaign, executor, attempts), end="")
    return exit_code(campaign, executor, attempts)


def parse(argv: Sequence[str]) -> Options:
    """Flags as ``--flag value`` or ``--flag=value``, and one name."""
    rest, names, given = list(argv), [], {}
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            names.append(word)
        elif name not in _FLAGS:
            raise UserError(show(name), value or "(given)", "is not a flag",
                            nearest_names(name, _FLAGS))  # fmt: skip
        elif not has_value and not rest:
            raise UserError(name, "(none)", "needs a value")
        else:
            given[name] = value if has_value else rest.pop(0)
    if len(names) > 1:
        raise UserError("campaign", show(names[1]), "is a second name", "give one campaign")
    return Options(
        name=names[0] if names else "h200",
        budget_seconds=duration(given.get("--budget", "8min")),
        out=Path(given["--out"]) if "--out" in given else None,
        config_dir=Path(given["--config-dir"]) if "--config-dir" in given else None,
    )


def record_environment(out: Path) -> str:
    """Write environment.json; a short hash of software, GPUs and variables.

    Asked in a process of its own: a CUDA context that stays here would take memory from every
    trial, and be another process on its GPU.
    """
    asked = (sys.executable, "-m", "harness.measure.environment")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError("environment", "torch", f"does not load: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    write_atomic(out / "environment.json", json.dumps(found, indent=1, sort_keys=True) + "\n")
    names = [gpu.get("name") for gpu in found["gpus"]]
    same = json.dumps([found["software"], names, found["variables"]], sort_keys=True)
    return hashlib.sha256(same.encode()).hexdigest()[:12]


def page(campaign: Campaign, executor: Executor, attempts: Sequence[Attempt]) -> str:
    """One line an item: what became of it, in how long."""
    now = {attempt.item: attempt for attempt in attempts}
    done = executor.journal.done()
    lines = []
    for item in campaign.items:
        attempt = now.get(item.name)
        if attempt is not None:
            state = f"{attempt.outcome} in {attempt.seconds:.0f} s"
            if attempt.outcome is Outcome.FAILED:
                state += f", exit code {attempt.exit_code}: logs/{item.name}.txt"
        elif item.key(executor.environment) in done:
            state = "done before"
        else:
            state = f"needs {', '.join(item.lacks())}" if item.lacks() else "not begun"
        lines.append(f"  {item.name:<28} {state:<24} {item.why}")
    return "\n".join([f"campaign in {executor.out}", *lines]) + "\n"


def exit_code(campaign: Campaign, executor: Executor, attempts: Sequence[Attempt]) -> int:
    """4 where an item failed now, 3 where one is left that can run here, else 0."""
    if any(attempt.outcome is Outcome.FAILED for attempt in attempts):
        return FAILED
    done = executor.journal.done()
    left = [
        item
        for item in campaign.items
        if item.key(executor.environment) not in done and not item.lacks()
    ]
    return _LEFT if left else 0


def _say(text: str) -> None:
    print(f"harness campaign: {text}", file=sys.stderr, flush=True)
