"""`harness ingest`, from the command line to results that compare and golden read."""

import gzip
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from harness.api.ingesting import find_sources
from harness.cli import ingest
from harness.cli import main as cli
from harness.cli.ingest import parse
from harness.judge.results import load_results
from harness.logs.records import LogFramework
from harness.trial.store import RunFolder
from harness.trial.trial import RunPlan
from tests.harness.logs import lines

HEAD = lines.megatron_header()
MEMORY = lines.megatron_memory(0, 2, 55210.5, 58112.0)
FULL = (
    "experiment=llama3_70b_32xh100",
    "job.seq_length=4096",
    "job.global_batch_size=32",
    "layout.virtual_pipeline_model_parallel_size=5",
)


def steps(total: int = 12, upto: int = 12, ms: float = 1230.0) -> str:
    return "".join(
        lines.megatron(n, total, ms=9000.0 if n == 1 else ms) for n in range(1, upto + 1)
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_line_for_each_log(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    Path("good.log").write_text(HEAD + steps() + MEMORY)
    Path("cut.log").write_text(HEAD + steps(upto=9))
    oom = "torch.OutOfMemoryError: CUDA out of memory\n"
    Path("oom.log").write_text(HEAD + steps(upto=3) + oom)
    Path("garbage.log").write_bytes(bytes(range(256)))
    assert cli.main(["ingest", "good.log", "cut.log", "oom.log", "garbage.log"]) == 4
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "ok          megatron_lm      good.log  8 steps after 4 of warm-up  1230.0 ms  "
        "412.3 TFLOP/s/GPU  53.92 GiB allocated  56.75 GiB reserved",
        "            loss 8.123",
        "incomplete  megatron_lm      cut.log  [training] the end of the run is not in the log; "
        "--accept-incomplete uses the log anyway (after step 9",
        "            of 12)",
        "oom         megatron_lm      oom.log  [training] torch.OutOfMemoryError: CUDA out of "
        "memory (after step 3 of 12)",
        "no_data     unknown          garbage.log  [start] no line of a known framework in 3 lines",
    ]


def test_a_damaged_file_is_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """All its steps can be read, and its checksum fails."""
    packed = bytearray(gzip.compress((HEAD + steps()).encode()))
    packed[-6] ^= 1
    Path("bad.log.gz").write_bytes(packed)
    assert cli.main(["ingest", "bad.log.gz"]) == 3
    assert capsys.readouterr().out.startswith(
        "incomplete  megatron_lm      bad.log.gz  [training] bad.log.gz: the file is damaged"
    )
    assert cli.main(["ingest", "bad.log.gz", "--accept-incomplete"]) == 0


def test_a_text_about_training_is_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    """It speaks of running out of memory; a traceback of it would be believed."""
    words = "What fits: that no rank runs out of memory.\nRuntimeError: CUDA out of memory\n"
    Path("README.md").write_text(words)
    assert cli.main(["ingest", "README.md"]) == 3
    first = "no_data     unknown          README.md  [start] no l"
    assert capsys.readouterr().out.startswith(first)
    Path("died.log").write_text("Traceback (most recent call last):\n" + words)
    assert cli.main(["ingest", "died.log"]) == 4


@pytest.mark.parametrize(
    ("content", "flags", "code"),
    [
        (HEAD + steps(), (), 0),
        (HEAD + steps(upto=9), (), 3),
        (HEAD + steps(upto=9), ("--accept-incomplete",), 0),
        (HEAD + steps(upto=3), (), 3),
        ("", (), 3),
        (HEAD + steps(upto=3) + "NCCL error in: a.cpp\n", (), 4),
        (HEAD + steps(upto=3) + lines.megatron(4, 12, loss=None, nans=1), (), 4),
    ],
)
def test_exit_codes(content: str, flags: tuple[str, ...], code: int) -> None:
    Path("train.log").write_text(content)
    assert cli.main(["ingest", "train.log", *flags]) == code


def test_a_wholly_known_workload_is_a_run_that_golden_and_compare_read(capsys) -> None:
    for name, ms in (("a", 1230.0), ("b", 1231.0), ("c", 1900.0)):
        Path(f"{name}.log").write_text(HEAD + steps(ms=ms) + MEMORY)
    assert cli.main(["ingest", "a.log", "b.log", *FULL, "name=base"]) == 0
    plan = RunFolder(Path("runs/base")).plan()
    assert (plan.experiment, plan.device_name) == ("ingested", "H100")
    (setting,) = plan.settings
    assert (setting.spec, setting.trial.measurement.repeats) == ("selective:mlp", 2)
    assert setting.trial.prediction.step_time_seconds is not None
    loaded = load_results([Path("runs/base")])
    assert [result.status for result in loaded.results] == ["ok", "ok"]
    assert loaded.commands == {}, "nobody here can run a log again"
    assert cli.main(["golden", "update", "--reason", "x", "--to", "g", "runs/base"]) == 0
    assert cli.main(["ingest", "c.log", *FULL, "name=slow"]) == 0
    assert cli.main(["compare", "runs/base", "--golden", "g"]) == 0
    capsys.readouterr()
    assert cli.main(["compare", "runs/slow", "--golden", "g"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  llama3_70b/tp4pp4/selective:mlp  step_time_seconds  1.231 s -> 1.9 s" in shown
    assert cli.main(["ingest", "a.log", *FULL, "name=base"]) == 0, "again into its own folder"


def test_what_only_the_log_tells_is_compared_too() -> None:
    Path("a.log").write_text(HEAD + steps() + MEMORY)
    Path("b.log").write_text(HEAD + steps(ms=1235.0) + MEMORY)
    for name in ("a", "b"):
        assert cli.main(["ingest", f"{name}.log", "gpus=32xH100"]) == 0
    to = ["--reason", "x", "--to", "g", "runs/ingested-a"]
    assert cli.main(["golden", "update", *to]) == 0
    (golden,) = Path("g").iterdir()
    assert golden.name.startswith("80x8192-tp4pp4-selective_mlp-32xH100-SXM-80GB-")
    assert cli.main(["compare", "runs/ingested-a", "--golden", "g"]) == 0
    assert cli.main(["compare", "runs/ingested-b", "--golden", "g"]) == 3, "one log a side: open"


def test_like_another_result() -> None:
    Path("a.log").write_text(HEAD + steps() + MEMORY)
    assert cli.main(["ingest", "a.log", *FULL, "name=base"]) == 0
    (result,) = Path("runs/base/trials").glob("*/result.json")
    assert cli.main(["ingest", "a.log", f"like={result}", "name=same"]) == 0
    first, second = (load_results([Path("runs") / n]).results[0] for n in ("base", "same"))
    assert first.trial["workload"] == second.trial["workload"]
    assert first.environment == second.environment
    assert cli.main(["ingest", "a.log", "name=part"]) == 0
    assert cli.main(["ingest", "a.log", "like=runs/part/a/result.json", "name=again"]) == 0


def test_another_framework_needs_a_setting(capsys) -> None:
    log = "".join(lines.titan(n, tps=3000, second=n) for n in range(1, 13))
    Path("titan.log").write_text(log + lines.titan_says("Training completed"))
    assert cli.main(["ingest", "titan.log", "experiment=llama3_8b_8xh100"]) == 2
    assert "the log does not state its recompute setting" in capsys.readouterr().err
    asked = ["experiment=llama3_8b_8xh100", "recompute.settings=[full:block:8]"]
    assert cli.main(["ingest", "titan.log", *asked]) == 0
    assert "torchtitan" in capsys.readouterr().out


def test_a_folder_is_one_run_and_a_pattern_many() -> None:
    for rank in (0, 1):
        folder = Path(f"job/attempt_0/{rank}")
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("")
    Path("job/notes.json").write_text("{}")
    Path("x.log.gz").write_bytes(gzip.compress(b""))
    Path("y.log").write_text("")
    folder_, *patterns = find_sources(["job", "*.log*"])
    assert (folder_.name, len(folder_.paths)) == ("job", 2)
    assert [source.name for source in patterns] == ["x", "y"]
    (one,) = find_sources(["x.log.gz", "y.log"], one_run=True)
    assert len(one.paths) == 2
    assert [s.name for s in find_sources(["y.log", "job/../y.log"])] == ["y", "y-2"]


def test_the_command_line(capsys) -> None:
    Path("a=b.log").write_text("")
    words = ["a=b.log", "framework=nemo", "--one-run", "gpus=8xH100", "--config-dir", "c"]
    asked, dry_run = parse(words)
    assert asked.logs == ("a=b.log",)
    assert asked.overrides == ("gpus=8xH100",)
    assert (asked.framework, asked.one_run, dry_run) == (LogFramework.NEMO, True, False)
    asked, dry_run = parse(["x", "framework=auto", "--dry-run"])
    assert (asked.framework, dry_run) == (None, True)
    assert cli.main(["ingest", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(flag.names[0] in text for flag in ingest.COMMAND.flags)


def test_a_measured_run_is_not_written_over() -> None:
    RunFolder(Path("runs/mine")).create(RunPlan(experiment="x", device_name="cpu", settings=()))
    Path("a.log").write_text(HEAD + steps())
    assert cli.main(["ingest", "a.log", "name=mine"]) == 2
    assert cli.main(["ingest", "a.log", "name=mine", "--dry-run"]) == 0


def test_results_of_another_log_are_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(f"{folder}/train.log").write_text(HEAD + steps())
    assert cli.main(["ingest", "a/train.log"]) == 0
    assert cli.main(["ingest", "a/train.log"]) == 0, "its own"
    kept = Path("runs/ingested-train/train/result.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["ingest", "b/train.log"]) == 2
    assert "holds results of another log" in capsys.readouterr().err
    assert Path("runs/ingested-train/train/result.json").read_bytes() == kept
    assert cli.main(["ingest", "b/train.log", "name=b"]) == 0


def test_a_folder_that_may_not_be_searched(capsys, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "job/x")

    Path("job").mkdir()
    Path("job/x").write_text("")
    monkeypatch.setattr(Path, "is_file", refuse)
    assert cli.main(["ingest", "job"]) == 2
    assert "LOG = job: cannot be searched: job/x: Permission denied" in capsys.readouterr().err
