"""The progress line, on a terminal and elsewhere."""

from io import StringIO

import pytest

from harness.run.progress import Progress, duration, reason
from harness.trial.result import Evidence, Phase, TrialResult, TrialStatus
from harness.trial.store import TrialState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def result(status: str = "ok", evidence: Evidence | None = None) -> TrialResult:
    return TrialResult(
        name="x",
        status=TrialStatus(status),
        trial={},
        environment={},
        started_at="",
        wall_seconds=1.0,
        evidence=evidence,
    )


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
        "trial  1/12  none  ok, as found",
        "trial  2/12  selective:mlp  oom  12 s  [backward, 1.00 GiB over] no memory"
        "  (2 min 00 s to go)",
    ]


def test_one_line_is_rewritten_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    clock, stream = Clock(), Terminal()
    progress = Progress(2, stream, clock)
    progress.plan(2)
    progress.begin(1, "none")
    for _ in range(10):
        clock.now += 0.1
        progress.tick(TrialState(phase=Phase.FORWARD, step=7))
    parts = stream.getvalue().split("\r\x1b[K")[1:]
    assert parts[0] == "trial 1/2  none  start  0.0 s"
    assert parts[1].startswith("trial 1/2  none  forward step 7  0.")
    assert len(parts) in (2, 3), "twice a second at most"
    progress.end(result())
    progress.begin(2, "x" * 80)
    last = stream.getvalue().split("\r\x1b[K")[-1]
    assert len(last) == 59
    assert "\n" not in last


def test_the_rest_is_estimated_from_the_mean() -> None:
    clock, stream = Clock(), Terminal()
    progress = Progress(3, stream, clock)
    progress.plan(3)
    progress.begin(1, "a")
    clock.now += 10
    progress.end(result())
    progress.begin(2, "b")
    clock.now += 4
    progress.tick(TrialState())
    assert stream.getvalue().endswith("4.0 s  16 s to go")


def test_a_broken_stream_ends_nothing() -> None:
    class Broken(StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    progress = Progress(1, Broken())
    progress.plan(1)
    progress.begin(1, "a")
    progress.end(result())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_reason_without_bytes() -> None:
    assert reason(Evidence(phase=Phase.BUILD, message="no")) == "[build] no"
