"""Whole logs: found out, put together, and never a wrong number out of a damaged one."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.base.lines import LINE_CHARACTERS
from advisor.base.record import as_dict
from harness.logs.parse import ParsedLog, parse_logs
from harness.logs.records import LogFramework, LoggedPeak, LoggedStep, WholeRun
from harness.logs.trial_result import not_a_number
from harness.trial.result import TrialStatus
from tests.harness.logs import lines
from tests.harness.logs.conftest import Parse

SMALL = (
    lines.megatron_header()
    + lines.megatron(1, 5, ms=9000.0, loss=9.9)
    + lines.megatron_memory(0, 1, 15210.5, 58112.0)
    + lines.megatron(2, 5, ms=1200.1, loss=9.8)
    + lines.megatron_memory(0, 2, 55210.5, 58112.0)
    + lines.megatron_memory(8, 2, 50210.5, 57112.0)
    + "".join(lines.megatron(n, 5, ms=1200.0 + n, loss=10 - n / 10) for n in (3, 4, 5))
)


TINY = "".join(lines.megatron(n, 3, ms=ms) for n, ms in ((1, 9000.0), (2, 1200.1)))
TINY += lines.megatron_memory(0, 2, 55210.5, 58112.0) + lines.megatron(3, 3, ms=1203.5)


def seconds(parsed: ParsedLog) -> list[float | None]:
    return [step.seconds for step in parsed.steps]


def test_a_small_log(parse: Parse) -> None:
    parsed = parse(SMALL)
    assert parsed.framework is LogFramework.MEGATRON_LM
    assert seconds(parsed) == [9.0, 1.2001, 1.203, 1.204, 1.205]
    assert [step.loss for step in parsed.steps] == [9.9, 9.8, 9.7, 9.6, 9.5]
    assert parsed.peaks == (
        LoggedPeak(number=2, rank=0, allocated=round(55210.5 * 2**20), reserved=58112 * 2**20),
        LoggedPeak(number=2, rank=8, allocated=round(50210.5 * 2**20), reserved=57112 * 2**20),
    )
    assert (parsed.ended, parsed.restarts, parsed.damaged, parsed.cause) == (True, 0, (), None)
    assert parsed.arguments["recompute_modules"] == "['mlp']"


@pytest.mark.parametrize("kind", ["text", "gzip"])
def test_cut_at_every_byte_there_is_never_a_wrong_number(tmp_path: Path, kind: str) -> None:
    """Only fewer of the true ones, and never an end that was not there."""
    path = tmp_path / "cut.log"
    path.write_bytes(TINY.encode())
    whole = parse_logs([path])
    content = TINY.encode() if kind == "text" else gzip.compress(TINY.encode())
    for length in range(len(content)):
        path.write_bytes(content[:length])
        parsed = parse_logs([path])
        assert parsed.steps == whole.steps[: len(parsed.steps)]
        assert set(parsed.peaks) <= set(whole.peaks)
        assert parsed.ended is (len(parsed.steps) == 3)
        assert parsed.cause is None
        assert bool(parsed.damaged) is (kind == "gzip" and length > 1), "its first bytes say gzip"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, len(SMALL)))
def test_garbage_between_adds_nothing(tmp_path_factory, junk: bytes, at: int) -> None:
    """Wherever it stands, a figure is the true one or none. (A digit within a number would make
    another number: no reader can know, so the junk begins and ends with a control character.)"""
    path = tmp_path_factory.mktemp("junk") / "train.log"
    path.write_bytes(SMALL.encode())
    whole = {step.number: step for step in parse_logs([path]).steps}
    path.write_bytes(SMALL.encode()[:at] + b"\x01" + junk + b"\x01" + SMALL.encode()[at:])
    for step in parse_logs([path]).steps:
        for name, value in as_dict(step).items():
            assert value in (None, getattr(whole[step.number], name))


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.binary(max_size=2000), st.text(max_size=500).map(str.encode)))
def test_random_bytes_are_no_log(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "train.log"
    path.write_bytes(junk)
    parsed = parse_logs([path])
    assert (parsed.framework, parsed.steps, parsed.peaks) == (None, (), ())


PACKED = {
    "windows": SMALL.replace("\n", "\r\n").encode(),
    "utf-8 with a mark": b"\xef\xbb\xbf" + SMALL.encode(),
    "utf-16": SMALL.encode("utf-16"),
    "gzip": gzip.compress(SMALL.encode()),
    "colours": SMALL.replace(" [2026", "\x1b[32m [2026").replace("|\n", "|\x1b[0m\n").encode(),
    "bad bytes": b"\xff\xfe\x00\x80"[2:] + SMALL.encode() + b"\x80\xff\n",
    "srun": SMALL.replace("\n [", "\n3: [").replace("\n[Rank", "\n0: [Rank").encode(),
    "nemo-run": SMALL.replace(" [2026", "[default7]: [2026").encode(),
}


@pytest.mark.parametrize("kind", PACKED)
def test_what_consoles_and_launchers_make_of_it(parse: Parse, kind: str) -> None:
    parsed = parse(PACKED[kind])
    assert seconds(parsed) == [9.0, 1.2001, 1.203, 1.204, 1.205]
    assert len(parsed.peaks) == 2
    assert parsed.ended is True


def test_huge_lines_are_passed_over(parse: Parse) -> None:
    bar = "\r".join(f" {n}%|###| {n}/100" for n in range(500))
    huge = "x" * (3 * LINE_CHARACTERS) + lines.megatron(4, 5, ms=1.0)
    parsed = parse(SMALL.replace(lines.megatron(5, 5, ms=1205.0, loss=9.5), f"{bar}\n{huge}"))
    assert seconds(parsed) == [9.0, 1.2001, 1.203, 1.204]
    assert parsed.ended is False


def test_a_bar_of_carriage_returns(parse: Parse) -> None:
    parsed = parse("".join(lines.nemo_1(n, 20, 3.0 + n) for n in (18, 19, 19, 20)) + "\n")
    assert parsed.framework is LogFramework.NEMO
    assert {step.number: step.seconds for step in parsed.steps} == {18: 21.0, 19: 22.0, 20: 23.0}
    assert len(parsed.steps) == 3
    assert parsed.ended is True


def test_a_run_that_began_again_counts_from_there(parse: Parse) -> None:
    """Its numbers go back: what was said before belongs to another attempt."""
    first = "".join(lines.megatron(n, 6, ms=5000.0 + n) for n in range(1, 5))
    second = "".join(lines.megatron(n, 6, ms=1000.0 + n) for n in range(3, 7))
    old = lines.megatron_memory(0, 2, 70000.0, 70000.0)
    parsed = parse(first + old + second + lines.megatron_memory(0, 4, 5.0, 6.0))
    assert seconds(parsed) == [1.003, 1.004, 1.005, 1.006]
    assert parsed.peaks == (LoggedPeak(number=4, rank=0, allocated=5 * 2**20, reserved=6 * 2**20),)
    assert parsed.restarts == 1
    one, two, three, four = (lines.megatron(number, 4) for number in range(1, 5))
    head = lines.megatron_header()
    parsed = parse(head + one + two + head + three + four)
    assert [step.number for step in parsed.steps] == [3, 4], "rank 0 says that it began"
    assert parsed.restarts == 1


def test_ranks_of_torchtitan_are_streams_of_their_own(parse: Parse) -> None:
    text = ""
    for number in (1, 2, 3):
        text += "[rank0]:" + lines.titan(number, loss=-1.0, tps=5000 + number, gib=50.0 + number)
        text += "[rank1]:" + lines.titan(number, loss=7.0, tps=4000 + number, gib=60.0)
    text += "[rank0]:" + lines.titan_says("Training completed")
    parsed = parse(text)
    assert parsed.restarts == 0
    assert [step.tokens_per_second_per_gpu for step in parsed.steps] == [4001, 4002, 4003]
    assert [step.loss for step in parsed.steps] == [7.0] * 3
    assert [(p.rank, p.reserved) for p in parsed.peaks] == [(0, 53 * 2**30), (1, 60 * 2**30)]
    assert parsed.ended is True


def test_bridge_rates_go_to_their_steps(parse: Parse) -> None:
    """Rank 0 and the last rank write at their own pace; the seconds that both write tell."""
    text = lines.bridge_step(9.0, 50.0) + lines.bridge_step(1.23, 400.0)
    text += lines.megatron(1, 3, ms=9001.0, tflops=None) + lines.bridge_memory(0, 2, 55.21, 58.1)
    text += lines.megatron(2, 3, ms=1234.5, tflops=None) + lines.megatron(3, 3, tflops=None)
    parsed = parse(text + lines.bridge_step(1.5, 999.0))
    assert parsed.framework is LogFramework.MEGATRON_BRIDGE
    assert [step.tflops_per_gpu for step in parsed.steps] == [50.0, 400.0, None]
    assert parsed.peaks[0].allocated == 55_210_000_000


def test_bridge_rates_alone_are_steps(parse: Parse) -> None:
    parsed = parse(lines.bridge_step(9.0, 50.0) + lines.bridge_step(1.23, 400.0))
    assert parsed.steps == (
        LoggedStep(number=1, seconds=9.0, tflops_per_gpu=50.0),
        LoggedStep(number=2, seconds=1.23, tflops_per_gpu=400.0),
    )
    assert parsed.ended is False
    done = "[after training is done] datetime: 2026-01-15 10:20:31 \n"
    assert parse(lines.bridge_step(9.0, 50.0) + done).ended is True


def test_a_mean_of_the_whole_job_is_no_step(parse: Parse) -> None:
    """Bridge's and Megatron-LM's progress.txt."""
    parsed = parse(lines.job_throughput(100, 300.1) + lines.job_throughput(200, 400.1))
    assert (parsed.framework, parsed.steps) == (LogFramework.MEGATRON_LM, ())
    assert parsed.whole_run == WholeRun(tflops_per_gpu=400.1)


def test_of_ranks_that_all_write_steps_all_must_end(tmp_path: Path, parse: Parse) -> None:
    assert parse(lines.titan(1) + lines.titan(2)).ended is False, "torchtitan says when it is done"
    whole, cut = tmp_path / "rank0.log", tmp_path / "rank1.log"
    whole.write_text(lines.titan(1) + lines.titan_says("Training completed"))
    cut.write_text(lines.titan(1))
    assert parse_logs([whole]).ended is True
    assert parse_logs([whole, cut]).ended is False


def test_files_of_ranks_are_one_run(tmp_path: Path) -> None:
    """torchrun --log-dir: the last rank has the steps, the first the memory and the rates."""
    first, last = tmp_path / "0" / "stdout.log", tmp_path / "31" / "stdout.log"
    for path in (first, last):
        path.parent.mkdir()
    rates = lines.bridge_step(1.23, 400.0) + lines.megatron_memory(0, 2, 5.0, 6.0)
    first.write_text(lines.megatron_header() + rates)
    last.write_text(lines.megatron(1, 2, ms=1234.5, tflops=None) + lines.megatron(2, 2))
    parsed = parse_logs([first, last])
    steps = [(s.number, s.seconds, s.tflops_per_gpu) for s in parsed.steps]
    assert steps == [(1, 1.2345, 400.0), (2, 1.2345, 412.3)]
    assert [peak.rank for peak in parsed.peaks] == [0]
    assert (parsed.restarts, parsed.ended, parsed.lines) == (0, True, 21)


def test_files_that_say_less_than_those_of_other_ranks(tmp_path: Path) -> None:
    cut = SMALL[: SMALL.index("iteration        4")]
    contents = {"cut": cut, "empty": "", "junk": "junk\n", "rank0": SMALL, "stderr": "a warning\n"}
    for name, text in contents.items():
        (tmp_path / f"{name}.log").write_text(text)
    odd = parse_logs(sorted(tmp_path.iterdir())).odd_files
    assert odd == ("cut.log ends at step 3 of 5", "junk.log holds no line of megatron_lm")


def test_the_cause_is_taken_from_any_rank(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(lines.megatron(1) + "NCCL error in: x.cpp\n")
    (tmp_path / "rank1.log").write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
    parsed = parse_logs(sorted(tmp_path.iterdir()))
    assert parsed.cause.status is TrialStatus.OOM


def test_one_framework_can_be_asked_for(parse: Parse) -> None:
    """A Trainer on DeepSpeed writes both: DeepSpeed's lines have times."""
    text = lines.deepspeed(10) + "{'loss': 7.1, 'epoch': 0.1}\n"
    assert parse(text).framework is LogFramework.DEEPSPEED
    assert parse(text, LogFramework.HUGGINGFACE).steps == (LoggedStep(number=1, loss=7.1),)
    assert parse(text, LogFramework.NEMO).framework is None


def test_a_trainers_losses_begin_again_with_their_epoch(parse: Parse) -> None:
    rows = ((9, 0.1), (8, 0.2), (7, 0.1), (6, 0.2))
    parsed = parse("".join(f"{{'loss': {loss}, 'epoch': {epoch}}}\n" for loss, epoch in rows))
    assert [step.loss for step in parsed.steps] == [7.0, 6.0]
    assert (parsed.restarts, parsed.ended) == (1, False)


def long_log(kind: str, count: int, nan: int = 0) -> str:
    """As many steps, torchtitan's of two ranks, and what else is between them."""
    text = ""
    for number in range(1, count + 1):
        loss = "nan" if 0 < nan <= number else f"{8 - number / count:.3f}"
        text += {
            "megatron": lines.megatron(number, count, ms=1e3 + number % 7, nans=0 < nan <= number),
            "titan": "".join(
                f"[rank{rank}]: {lines.titan(number, gib=50 + number * (rank + 3) % 11)}".replace(
                    "loss:  7.12345", f"loss: {loss}"
                )
                for rank in (0, 1)
            ),
            "trainer": f"  1%|█ | 1/9\r{{'loss': {loss}, 'epoch': {number / 100}}}\n",
        }[kind]
        if kind == "megatron" and number % 3 == 0:
            text += lines.megatron_memory(number % 2, number, 50 + number / 9, 60 + number / 9)
        text += "a word\n" * (number % 5) + "saved iteration 5 ... done\n" * (number % 90 == 0)
    return text


@pytest.mark.parametrize("end", ["", "again", "nan", "out of memory"])
@pytest.mark.parametrize("kind", ["megatron", "titan", "trainer"])
def test_of_a_long_log_few_steps_are_kept_and_nothing_is_missed(
    parse: Parse, monkeypatch: pytest.MonkeyPatch, kind: str, end: str
) -> None:
    text = long_log(kind, 400, nan=300 if end == "nan" else 0)
    text += long_log(kind, 99) if end == "again" else f"CUDA {end}\n"
    whole = parse(text)
    monkeypatch.setattr("harness.logs.parse.KEPT_STEPS", 60)
    monkeypatch.setattr("advisor.base.lines.BLOCK_BYTES", 4096)
    few = parse(text)
    for name in ("framework", "peaks", "arguments", "whole_run", "ended", "cause", "restarts"):
        assert getattr(few, name) == getattr(whole, name)
    assert few.steps[:30] == whole.steps[:30]
    assert str(few.steps[-1]) == str(whole.steps[-1])
    assert len(few.steps) < 66 < len(whole.steps)
    assert few.unread + len(few.steps) == len(whole.steps)
    assert str(not_a_number(few)) == str(not_a_number(whole))


def test_of_a_long_log_few_timers_are_kept(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.logs.parse.KEPT_STEPS", 60)
    timers = "[INFO] [Rank 0] time (ms) | fwd: 10.00 | bwd: 20.00 | step: 5.00\n"
    timed = parse("".join(lines.deepspeed(n) + timers for n in range(1, 401)))
    steps = [(one.number, one.timer_seconds) for one in timed.steps]
    assert steps == [*((n, 0.035) for n in range(1, 61)), (400, None)]


def test_a_long_log_is_read_rank_by_rank(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.logs.parse.KEPT_STEPS", 60)
    monkeypatch.setattr("advisor.base.lines.BLOCK_BYTES", 4096)
    text = [lines.megatron(n, 200) for n in range(1, 201)]
    text[120:130] = [f"[4]: {line}" for line in text[120:130]]  # no rank's prefix that is known
    text[140:150] = [f"[rank1]: {line}".replace("E-04", "E--4") for line in text[140:150]]
    assert parse("".join(text)).restarts == 0
    trained = [f"{{'loss': 7.1, 'epoch': {n / 100}}}\n" for n in range(1, 201)]
    trained[150] = trained[150].replace("1.51", "1.5.1")
    assert parse("".join(trained)).restarts == 0
