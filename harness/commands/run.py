"""`harness run`: plan, run, and show predicted beside measured."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from advisor.errors import UserError
from harness.config import RunConfig, compose
from harness.device import find_machine
from harness.plan import RunPlan
from harness.planning import make_plan
from harness.predicted import page
from harness.progress import Progress
from harness.result import TrialResult
from harness.runner import Runner, exit_code
from harness.signals import Stop
from harness.store import RunFolder

FAILED: Final = 4
HELP: Final = """\
harness run [flags] [KEY=VALUE]...

Runs recompute settings of one job on the device at hand, each in fresh processes, and prints what
the advisor predicted beside what was measured. Alone it runs a small model on whatever is here.

  harness run
  harness run experiment=llama3_8b_1xh200                        the advisor's three best settings
  harness run experiment=llama3_8b_1xh200 recompute=selective_mlp measure.repeats=5
  harness run experiment=llama3.2_1b_1xh100 'recompute.settings=[none,full:block:4]' job.seq_length=2048

What runs (Hydra overrides; groups are files in configs/experiment and configs/recompute)
  experiment=NAME           a job preset, e.g. llama3_8b_1xh200
  recompute=NAME            top (the advisor's best), corners, none, selective_mlp, full_uniform_1, …
  recompute.top=N           how many of the best
  recompute.settings=[…]    settings as `advise` spells them
  model.* layout.* job.*    any field, in Megatron's names, as for `advise`
  gpus=COUNTxTYPE           instead of the preset's      device=auto|cuda|cpu
  backend=native            who runs the training step

How it is measured
  measure.steps=10          steps after warm-up           measure.repeats=1   processes a setting
  measure.timeout_seconds=900   of one process            measure.seed=1234
  measure.min_warmup_steps, measure.max_warmup_steps, measure.warmup_tolerance,
  measure.memory_timeline=true|false

Where results go: runs/NAME, made of experiment, device and settings; the same command goes on where
it was stopped, and runs nothing twice
  name=NAME   runs=FOLDER

Flags
  --dry-run                 show the trials and predictions, run nothing, write nothing
  --retry                   run trials again that gave no measurement (failed, out of memory, …)
  --config-dir DIR          searched before ./configs and the packaged configuration
  --help

Exit codes: 0 settings were measured, 2 the request is wrong (one line says why), 4 a trial failed
or nothing was measured, 130 interrupted (143 by SIGTERM): what is finished is kept.
"""  # noqa: E501


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What stands beside the overrides."""

    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    retry: bool = False
    config_dir: Path | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return 0
    flags = parse(argv)
    config = compose(flags.overrides, flags.config_dir)
    plan = make_plan(config, find_machine(config.device))
    folder = RunFolder(_folder(config, plan))
    if flags.dry_run:
        print(dry_page(plan, folder), end="")
        return 0
    return _run(plan, folder, flags.retry, argv)


def parse(argv: Sequence[str]) -> Flags:
    """Flags and overrides; UserError for a flag that is not known."""
    from advisor.units import nearest_names

    rest, overrides = list(argv), []
    given: dict[str, bool] = {}
    config_dir: Path | None = None
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if word in ("--dry-run", "--retry"):
            given[word.removeprefix("--").replace("-", "_")] = True
        elif name == "--config-dir":
            if not has_value and not rest:
                raise UserError(name, "(none)", "needs a folder")
            config_dir = Path(value if has_value else rest.pop(0))
        elif word.startswith("-"):
            hint = nearest_names(word, ("--dry-run", "--retry", "--config-dir", "--help"))
            raise UserError(word, "(given)", "is not a flag", hint)
        else:
            overrides.append(word)
    return Flags(overrides=tuple(overrides), config_dir=config_dir, **given)


def _folder(config: RunConfig, plan: RunPlan) -> Path:
    name = config.name or plan.default_name
    if os.path.basename(name) != name or name in (".", ".."):
        raise UserError("name", name, "must be the name of one folder")
    return Path(config.runs) / name


def _run(plan: RunPlan, folder: RunFolder, retry: bool, argv: Sequence[str]) -> int:
    total = sum(1 for _ in plan.trials())
    _say(f"{total} {'trial' if total == 1 else 'trials'} into {folder.path}")
    runner = Runner(folder=folder, plan=plan, progress=Progress(total), retry=retry)
    try:
        results = runner.run()
    except Stop as stop:
        _say(f"stopped: {_kept(folder, total)}; go on with: {_again(argv)}")
        return stop.exit_code
    except OSError as error:
        where = error.filename or folder.path
        _say(
            f"cannot write {where}: {error.strerror or error}: {_kept(folder, total)}; "
            f"when that is put right: {_again(argv)}"
        )
        return FAILED
    return finish(plan, folder, results)


def finish(plan: RunPlan, folder: RunFolder, results: dict[str, TrialResult]) -> int:
    """Print the page; the exit code of the run."""
    print(page(plan, results), end="")
    _say(f"results in {folder.path}; harness report {quote(str(folder.path))}")
    return exit_code(results)


def dry_page(plan: RunPlan, folder: RunFolder) -> str:
    """What would be run and what is predicted of it."""
    shown = page(plan, {}).splitlines()[0]
    lines = [f"{shown} (dry run)", f"into {folder.path}", ""]
    for setting, trial in plan.trials():
        prediction = trial.prediction
        words = f"  {trial.name}  {setting.spec}"
        if setting.skip:
            words += f"  not run: {setting.skip}"
        elif prediction is not None and prediction.step_time_seconds is not None:
            words += f"  predicted {prediction.step_time_seconds * 1e3:.1f} ms a step"
        lines.append(words)
    lines += ["", *(f"Note: {text}." for text in plan.assumptions)]
    return "\n".join(lines) + "\n"


def _kept(folder: RunFolder, total: int) -> str:
    """How much of the run is on disk, and where."""
    try:
        done = len(folder.results())
    except UserError:  # the plan itself could not be written
        done = 0
    return f"{done} of {total} trials are finished, in {folder.path}"


def _again(argv: Sequence[str]) -> str:
    words = [word for word in argv if word != "--retry"]
    return " ".join(["harness", "run", *(quote(word) for word in words)])


def _say(text: str) -> None:
    """A line of talk; a full or closed stderr is no reason to fail."""
    try:
        print(f"harness run: {text}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for the rest of the process)
