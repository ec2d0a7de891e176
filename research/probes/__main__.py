"""Runs the cases of one probe, each in a process of its own (see the package).

Exit codes: 0 each case has its answer, 2 wrong use, 4 some failed or ran out of time.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Lock
from typing import Final

from advisor.base.errors import UserError, nearest_names, show
from harness.cli.main import fail
from harness.execution.progress import say
from harness.trial.trial import Device
from research.campaign.journal import SOME_FAILED
from research.probes.probe_case import Case, answer, has_answer, write

_NOT_PROBES: Final = ("__init__", "__main__", "probe_case", "answers_page")
_GPU: Final = Lock()
"""Held until the process that measures is gone, and its memory with it."""
_say: Final = partial(say, command="probe")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that have no answer yet; the exit code."""
    options = _parser().parse_args(argv)
    try:
        found = _cases(options)
    except UserError as error:
        return fail(f"probe: {error}")
    if options.here:
        (case,) = found
        device = Device.CPU if options.tiny else Device.CUDA
        write(answer(case, device, sys.stdin.readline), _path(options, case))
        return 0
    early = 1 if any(case.timed for case in found) else 2
    with ThreadPoolExecutor(early) as starting:
        return max(starting.map(partial(_run, options=options), found), default=0)


def _parser() -> ArgumentParser:
    made = ArgumentParser("python -m research.probes", description=__doc__)
    made.add_argument("name", help=", ".join(probes()))
    made.add_argument("--out", type=Path, required=True, help="folder of the answers")
    made.add_argument("--cases", help="only these, in this order")
    made.add_argument("--tiny", action="store_true", help="small cases on a CPU: does it run?")
    made.add_argument("--here", action="store_true", help="one case, in this process")
    return made


def probes() -> tuple[str, ...]:
    """Names of the modules that have cases."""
    modules = Path(__file__).parent.glob("*.py")
    return tuple(sorted(path.stem for path in modules if path.stem not in _NOT_PROBES))


def cases_of(name: str, *, tiny: bool) -> tuple[Case, ...]:
    """All cases of a probe; tiny: those that a CPU runs in seconds."""
    if name not in probes():
        raise UserError("name", show(name), "is no probe", nearest_names(name, probes()))
    found: tuple[Case, ...] = import_module(f"research.probes.{name}").cases(tiny)
    return found


def chosen(words: Sequence[str]) -> tuple[Case, ...]:
    """The cases that a command line names."""
    return _cases(_parser().parse_args(words))


def _cases(options: Namespace) -> tuple[Case, ...]:
    known = {case.name: case for case in cases_of(options.name, tiny=options.tiny)}
    names = options.cases.split(",") if options.cases else list(known)
    for name in names:
        if name not in known:
            raise UserError("--cases", show(name), "is no case", nearest_names(name, known))
    return tuple(known[name] for name in names)


def _path(options: Namespace, case: Case) -> Path:
    return Path(options.out, str(options.name), f"{case.name}.json")


def _run(case: Case, options: Namespace) -> int:
    """0 where the case has its answer, this one's or an earlier call's."""
    path = _path(options, case)
    if path.is_file() and has_answer(path):
        _say(f"{case.name}: done before")
        return 0
    words = [sys.executable, "-m", "research.probes", options.name, "--here", "--cases", case.name]
    words += ["--out", str(options.out), *(["--tiny"] if options.tiny else [])]
    variables = {**os.environ, **case.variables}
    process = Popen(words, env=variables, stdin=PIPE)
    with _GPU:
        try:
            process.communicate(b"your turn\n", case.seconds)
        except TimeoutExpired:
            process.kill()
            process.wait()
            _say(f"{case.name}: ended after {case.seconds:.0f} s")
            return SOME_FAILED
    found = path.is_file() and has_answer(path)
    _say(f"{case.name}: {'done' if found else 'failed'}, see {path}")
    return 0 if found else SOME_FAILED


if __name__ == "__main__":
    sys.exit(main())
