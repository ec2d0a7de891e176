"""`harness campaign`: the most valuable measurements first, within a time budget."""

import hashlib
import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.fields import show
from advisor.report.blocks import Column, Indented, group, table
from advisor.report.command_help import Command, Flag, Kind, Topic
from advisor.report.text import on_screen
from harness.base.duration import duration
from harness.campaign.execution import Executor
from harness.campaign.items import Campaign, Item, load_campaign
from harness.campaign.journal import Attempt
from harness.campaign.version import program_version
from harness.cli.flags import CONFIG_DIR, HELP, Parser
from harness.execution.progress import say
from harness.execution.signals import Stop, StopSignals
from harness.trial.files import write_atomic

FAILED: Final = 4
CALIBRATED: Final = "calibrated"
"""A --config-dir that items name before anything has been calibrated."""
_say: Final = partial(say, command="campaign")
COMMAND: Final = Command(
    usage="harness campaign [NAME|FILE] [flags]",
    about="Runs the items of a campaign, the most valuable first, and writes each result at once. "
    "An item is a command of the harness, listed in the campaign's YAML file. An item that is done "
    "on this machine is not run again; the same command continues an item that the budget cut "
    "short. A failed item is tried again after the code or configs of this project have changed. "
    "If the first harness run measures nothing, the campaign ends.",
    examples=(
        "harness campaign cpu --budget 3min",
        "harness campaign h200 --budget 8min --out results/measured/h200",
        "harness campaign h200 --items long,experts",
    ),
    topics=(
        Topic(
            "Flags",
            (
                (
                    "NAME",
                    "a file of configs/campaign (default: h200), or any YAML file of that form",
                ),
                Flag("--budget TIME", "30s, 8min (default), 1h", Kind.TEXT),
                Flag("--items NAMES", "only these items, in this order", Kind.TEXT),
                Flag("--retry", "run failed items again, even if code and configs are unchanged"),
                Flag(
                    "--out DIR",
                    "default: campaign/NAME. Holds environment.json, campaign.jsonl (what was "
                    "done), logs/, and what the items write: runs/, calibrated/, rehearsals/",
                    Kind.FOLDER,
                ),
                CONFIG_DIR,
                HELP,
            ),
        ),
    ),
    closing="Exit codes: 0 all items are done, 2 the request is wrong, 3 items are left for "
    "another call, 4 an item failed or did not measure every trial (its log says why), 130 "
    "interrupted: what is finished is kept.",
)
_LEFT: Final = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    began = time.monotonic()
    options = parse(argv)
    campaign = load_campaign(options.name, options.config_dir)
    if options.items:
        campaign = campaign.only(options.items)
    out = (options.out or Path("campaign") / Path(options.name).stem).resolve()
    (out / CALIBRATED).mkdir(parents=True, exist_ok=True)
    executor = Executor(
        out=out,
        environment=record_environment(out),
        version=program_version(),
        budget_seconds=options.budget_seconds,
        began=began,
        again=options.retry,
        say=_say,
    )
    try:
        with StopSignals():
            attempts = tuple(executor.run(campaign))
    except Stop as stop:
        _say(f"stopped; run the same command to continue, in {out}")
        return stop.exit_code
    print(page(campaign, executor, attempts), end="")
    return exit_code(campaign, executor)


def parse(argv: Sequence[str]) -> Namespace:
    """Flags and one name; UserError for a flag that is not known."""
    made = Parser("campaign", COMMAND)
    made.add_argument("name", nargs="*")
    found = made.read(argv)
    if len(found.name) > 1:
        raise UserError("campaign", show(found.name[1]), "is a second name", "give one campaign")
    found.name = found.name[0] if found.name else "h200"
    found.budget_seconds = duration(found.budget or "8min")
    found.items = _items(found.items) if found.items is not None else ()
    return found


def _items(text: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def record_environment(out: Path) -> str:
    """Write environment.json; a short hash of software, GPUs and variables.

    Asked in a process of its own: a CUDA context that stays here would take memory from every
    trial, and be another process on its GPU.
    """
    asked = (sys.executable, "-m", "harness.measure.fingerprint")
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
    found = table(Column(left=True, wrap=wraps) for wraps in (False, True, True))
    for item in campaign.items:
        found.add_row(item.name, _state(item, executor, now.get(item.name)), item.why)
    return on_screen(group(f"campaign in {executor.out}", Indented(found, 2)))


def _state(item: Item, executor: Executor, attempt: Attempt | None) -> str:
    standing = executor.standing(item)
    if attempt is not None:
        state = f"{attempt.outcome} in {attempt.seconds:.0f} s"
    elif standing.due and item.lacks():
        return f"needs {', '.join(item.lacks())}"
    else:
        state = standing.words
    if not standing.failed or standing.last is None:
        return state
    why = [f"exit code {standing.last.exit_code}"]
    why += [f"{standing.last.failed} trials failed"] if standing.last.failed else []
    return f"{state}, {', '.join(why)}: logs/{item.name}.txt"


def exit_code(campaign: Campaign, executor: Executor) -> int:
    """4 where an item failed with this program, or the first run measured nothing, 3 where one is
    left that can run here, else 0."""
    standings = [(item, executor.standing(item)) for item in campaign.items]
    first = campaign.first_run()
    nothing = first is not None and executor.measured_nothing(first)
    if nothing or any(standing.failed for _, standing in standings):
        return FAILED
    return _LEFT if any(given.due and not item.lacks() for item, given in standings) else 0
