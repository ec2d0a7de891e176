"""The most valuable measurements first, within a time budget: docs/campaign.md says more.

python -m research.campaign cpu --budget 3min
python -m research.campaign h200 --budget 8min --out results/measured/h200
python -m research.campaign h200 --items long,experts

Exit codes: 0 all items are done, 2 the request is wrong, 3 items are left for another call, 4 an
item failed or did not measure every trial (its log says why), 130 interrupted: what is finished is
kept.
"""

import hashlib
import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from advisor.base.errors import UserError
from advisor.report.blocks import Column, Indented, group, table
from advisor.report.text import on_screen
from harness.base.duration import duration
from harness.cli.main import fail
from harness.execution.progress import say
from harness.execution.signals import Stop, StopSignals
from harness.trial.files import write_atomic
from research.campaign.execution import Executor
from research.campaign.items import Campaign, Item, load_campaign
from research.campaign.journal import SOME_FAILED, Attempt
from research.campaign.version import probe_version, program_version

CALIBRATED: Final = "calibrated"
"""A --config-dir that items name before anything has been calibrated."""
_LEFT: Final = 3
_say: Final = partial(say, command="campaign")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign; the exit code."""
    began = time.monotonic()
    try:
        return _run(_parser().parse_args(argv), began)
    except UserError as error:
        return fail(f"campaign: {error}")


class _Parser(ArgumentParser):
    """Its errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError("arguments", self.prog, message, "see --help")


def _parser() -> ArgumentParser:
    made = _Parser(
        "python -m research.campaign",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("name", nargs="?", default="h200", help="of research/campaign/lists, or a YAML file")
    add("--budget", default="8min", metavar="TIME", help="30s, 8min (default), 1h")
    add("--items", metavar="NAMES", help="only these items, in this order")
    add("--retry", action="store_true", help="run failed items again, even if no code has changed")
    add("--out", type=Path, metavar="DIR", help="default: campaign/NAME")
    return made


def _run(options: Namespace, began: float) -> int:
    budget_seconds = duration(options.budget)
    campaign = load_campaign(options.name)
    if options.items is not None:
        campaign = campaign.only(_names(options.items))
    out = (options.out or Path("campaign") / Path(options.name).stem).resolve()
    (out / CALIBRATED).mkdir(parents=True, exist_ok=True)
    executor = Executor(
        out=out,
        environment=record_environment(out),
        version=program_version(),
        probe_version=probe_version(),
        budget_seconds=budget_seconds,
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


def _names(text: str) -> tuple[str, ...]:
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
        return SOME_FAILED
    return _LEFT if any(given.due and not item.lacks() for item, given in standings) else 0


if __name__ == "__main__":
    sys.exit(main())
