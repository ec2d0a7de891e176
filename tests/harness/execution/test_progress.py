"""The progress line, on a terminal and elsewhere."""

import re
import threading
from io import StringIO

import pytest

from harness.execution.progress import Progress, TimedCases, duration
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus, reason
from harness.trial.store import TrialState
from tests.harness.conftest import RAN

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""What hides a terminal's cursor, and shows it again."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def result(status: str = "ok", evidence: Evidence | None = None) -> TrialResult:
    return TrialResult(**RAN | {"status": TrialStatus(status)}, evidence=evidence)


def test_plain_lines_off_a_terminal() -> None:
    clock, stream = Clock(), StringIO()
    progress = Progress(12, stream, clock)
    progress.plan(11)
    progress.found(1, "none", result())
    progress.begin(2, "selective:mlp")
    progress.tick(TrialState(phase=Phase.BACKWARD, step=3))
    clock.now += 12.0
    evidence = Evidence(phase=Phase.BACKWARD, message="no memory", over_bytes=2**30)
    progress.end(result("oom", evidence))
    assert stream.getvalue().splitlines() == [
        "trial  1/12  none  ok (already run)",
        "trial  2/12  selective:mlp  oom  12 s  [backward, 1.00 GiB over] no memory"
        "  (2 min 00 s to go)",
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """60 columns wide."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def drawn(stream: StringIO) -> list[str]:
    """What was put in the place of one line, one after the other, without colours and bar."""
    parts = stream.getvalue().replace("\x1b[?25l", "").split("\r\x1b[2K")[1:]
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[━╸╺]", "", part).rstrip(" ") for part in parts]


def test_one_line_is_rewritten_on_a_terminal(terminal: Terminal) -> None:
    clock = Clock()
    progress = Progress(2, terminal, clock)
    progress.plan(2)
    threads = threading.active_count()
    progress.begin(1, "none")
    clock.now += 0.5
    progress.tick(TrialState(phase=Phase.FORWARD, step=7))
    assert threading.active_count() == threads, "nothing runs next to what is measured"
    assert "\n" not in terminal.getvalue()
    shown = list(dict.fromkeys(drawn(terminal)))
    assert shown == ["trial 1/2  none  start  0.0 s", "trial 1/2  none  forward step 7  0.5 s"]
    progress.end(result())
    assert terminal.getvalue().endswith("trial 1/2  none  ok  0.5 s  (0.5 s to go)\n")
    progress.begin(2, "x" * 80)
    assert drawn(terminal)[-1] == "trial 2/2  " + "x" * 47 + "…"


def test_a_trial_that_is_broken_off_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    progress = Progress(1, terminal)
    progress.begin(1, "none")
    assert terminal.getvalue().count(HIDDEN) == 1
    progress.close()
    progress.close()
    assert terminal.getvalue().count(SHOWN) == 1
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K"), "the line is erased"


def test_a_terminal_that_cannot_rewrite_gets_plain_lines(terminal: Terminal, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress(1, terminal, Clock())
    progress.begin(1, "none")
    progress.end(result())
    assert terminal.getvalue() == "trial 1/1  none  ok  0.0 s\n"


def test_the_rest_is_estimated_from_the_mean(terminal: Terminal) -> None:
    clock = Clock()
    progress = Progress(3, terminal, clock)
    progress.plan(3)
    progress.begin(1, "a")
    clock.now += 10
    progress.end(result())
    progress.begin(2, "b")
    clock.now += 4
    progress.tick(TrialState())
    assert drawn(terminal)[-1].endswith("4.0 s  16 s to go")


def test_the_cases_of_a_calibration_on_a_terminal(terminal: Terminal) -> None:
    clock = Clock()
    watch = TimedCases(180.0, terminal, clock)
    for timed in range(5):
        clock.now += 0.25
        watch.tick(timed, 900)
    assert list(dict.fromkeys(drawn(terminal))) == [
        f"{timed} of 900 cases timed, {spent} s of 3 min 00 s spent"
        for timed, spent in ((1, 0.5), (3, 1.0))
    ]
    watch.say("stopped")
    assert terminal.getvalue().endswith("harness calibrate: stopped\n")

    clock, stream = Clock(), StringIO()  # elsewhere a plain line every thirty seconds
    watch = TimedCases(60.0, stream, clock)
    for timed in range(60):
        clock.now += 1.0
        watch.tick(timed, 900)
    assert stream.getvalue().splitlines() == [
        "harness calibrate: 29 of 900 cases timed, 30 s of 1 min 00 s spent",
        "harness calibrate: 59 of 900 cases timed, 1 min 00 s of 1 min 00 s spent",
    ]


@pytest.mark.parametrize("kind", [StringIO, Terminal])
def test_a_broken_stream_ends_nothing(kind: type[StringIO], monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    class Broken(kind):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    progress = Progress(1, Broken())
    progress.plan(1)
    progress.begin(1, "a")
    progress.end(result())


def test_durations_and_a_reason_without_bytes() -> None:
    texts = {0.04: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.4: "59 s", 59.6: "1 min 00 s"}
    texts |= {200: "3 min 20 s", 3900: "1 h 05 min"}
    assert {seconds: duration(seconds) for seconds in texts} == texts
    assert reason(Evidence(phase=Phase.BUILD, message="no")) == "[build] no"
