"""`harness run backend=command`, end to end: a real process that takes flags and prints lines."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest

pytest.importorskip("hydra")

from harness.judge.results import load_results
from harness.trial.result import TrialResult
from harness.trial.store import decode_result
from tests.harness.drive import until, variables

Harness = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = f"{quote(sys.executable)} {quote(str(Path(__file__).with_name('pretrain_gpt.py')))}"
QUICK = ("measure.steps=6", "measure.max_warmup_steps=6")


@pytest.fixture
def harness(harness_in: Harness) -> Harness:
    words = ("run", "--no-report", "backend=command", "name=x", "device=cpu", *QUICK)
    return lambda folder, command, *more: harness_in(folder, *words, f"command={command}", *more)


def results(folder: Path) -> dict[str, TrialResult]:
    found = [decode_result(path.read_text(), path) for path in folder.rglob("result.json")]
    return {result.trial["workload"]["recompute"]: result for result in found}


def alive(marker: str) -> bool:
    """Whether a process has `marker` in its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_the_setting_arrives_and_the_log_comes_back(tmp_path: Path, harness: Harness) -> None:
    done = harness(tmp_path, f"{SCRIPT} --train-iters {{steps}}")
    assert done.returncode == 0, done.stderr
    found = results(tmp_path)
    peaks = {spec: result.memory[0].allocated for spec, result in found.items()}
    assert peaks == {
        "none": round(3000.25 * 2**20),
        "selective:mlp": round(2000.5 * 2**20),
        "full:uniform:1": round(1000.75 * 2**20),
    }
    for result in found.values():
        assert len(result.times.seconds) == 6
        first = result.times.steps[0]
        assert result.loss == tuple(9.0 - n / 10 for n in range(first, first + 6))
        assert "not_as_asked" not in [concern.name for concern in result.concerns]
        assert result.environment["source"]["framework"] == "megatron_lm"
    (log,) = tmp_path.glob(f"runs/x/trials/{found['none'].name}/log.txt")
    assert log.read_text().startswith(f"+ {SCRIPT} --train-iters 12\n")
    again = harness(tmp_path, f"{SCRIPT} --train-iters {{steps}}")
    assert again.stderr.count("already run") == 3
    loaded = load_results([tmp_path / "runs" / "x"])
    commands = list(loaded.commands.values())
    assert all("backend=command framework=megatron_lm" in command for command in commands)


def test_failures_of_all_kinds(tmp_path: Path, harness: Harness) -> None:
    """One command a fault, and full recompute, in which the script has none."""
    unlike = "not_as_asked: recompute is none in the log, selective:mlp in the request"
    expected = {
        "oom": ("oom", "[training, 512.00 MiB over] torch.OutOfMemoryError: CUDA out of memory."),
        "crash": ("failed", "You must specify a recompute method (after step 4 of 10)"),
        "silent": ("failed", "ended with exit code 3"),
        "nan": ("nan", "loss of step 5 is nan"),
        "deaf": ("unstable", unlike),
    }
    for fault, (status, says) in expected.items():
        folder = tmp_path / fault
        folder.mkdir()
        settings = "recompute.settings=[selective:mlp]"
        done = harness(folder, f"{SCRIPT} --train-iters 10 --fault {fault}", settings)
        assert results(folder)["selective:mlp"].status == status, done.stdout
        assert says in " ".join(done.stdout.split())
        assert done.returncode == (0 if status == "unstable" else 4)


def test_out_of_memory_of_one_setting_is_an_answer(tmp_path: Path, harness: Harness) -> None:
    done = harness(tmp_path, f"{SCRIPT} --train-iters 10 --fault oom {{recompute}}")
    assert done.returncode == 0
    found = results(tmp_path)
    assert found["none"].status == found["selective:mlp"].status == "oom"
    assert found["full:uniform:1"].times is not None  # ok or, on a busy machine, unstable


def test_a_command_that_hangs_is_ended_with_all_its_processes(tmp_path, harness: Harness) -> None:
    script = shutil.copy(Path(__file__).with_name("pretrain_gpt.py"), tmp_path / "hang_gpt.py")
    ranks = f"setsid {quote(sys.executable)} {quote(str(script))} --fault hang & wait; true"
    done = harness(
        tmp_path, f"{ranks} {{recompute}}", "recompute=none", "measure.timeout_seconds=4"
    )
    assert done.returncode == 4
    result = results(tmp_path)["none"]
    assert result.status == "timeout"
    assert result.evidence.message == "not done after 4 s (after step 4 of 30)"
    assert not alive(str(script))


def test_nothing_is_left_where_the_harness_is_killed(tmp_path: Path) -> None:
    """SIGKILL, which nobody can handle; ranks are in sessions of their own, as torchrun's are."""
    script = shutil.copy(Path(__file__).with_name("pretrain_gpt.py"), tmp_path / "kill_gpt.py")
    ranks = f"setsid {quote(sys.executable)} {quote(str(script))} --fault hang & wait; true"
    words = ("run", "backend=command", f"command={ranks} {{recompute}}", "name=x", "device=cpu")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    program = [sys.executable, "-m", "harness.cli.main", *words, "recompute=none"]
    running = subprocess.Popen(program, cwd=tmp_path, env=variables(), **quiet)
    until(lambda: any("hanging" in p.read_text() for p in tmp_path.rglob("log.txt")))
    running.send_signal(signal.SIGKILL)
    running.wait()
    until(lambda: not alive(str(script)))


def test_a_command_that_does_not_exist(tmp_path: Path, harness: Harness) -> None:
    done = harness(tmp_path, "no_such_program_here {recompute}", "recompute=none")
    assert done.returncode == 4
    assert "not found" in done.stdout


def test_environment_of_the_command(tmp_path: Path, harness: Harness) -> None:
    line = 'printf "%s\\n" "$HARNESS_TRIAL_FOLDER" "$NVTE_CPU_OFFLOAD_V1"; : {recompute}'
    setting = "recompute.settings=['none+offload=core_attn']"
    done = harness(tmp_path, line, setting, "job.framework_version=0.18")
    (log,) = tmp_path.rglob("log.txt")
    assert log.read_text().splitlines()[-2:] == [str(log.parent.resolve()), "1"], done.stdout
    trial = json.loads((log.parent / "trial.json").read_text())
    assert trial["command"]["variables"] == ["NVTE_CPU_OFFLOAD_V1=1"]


def test_a_real_trainer_gets_its_setting(tmp_path: Path, harness: Harness) -> None:
    """transformers reads the flags, checkpoints by them, and its log is read."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    script = quote(str(Path(__file__).with_name("train_trainer.py")))
    command = (
        f"{quote(sys.executable)} {script} --output_dir out --use_cpu True --report_to none "
        "--save_strategy no --disable_tqdm True --logging_steps 1 --max_steps {steps} {layout} "
        "{recompute}"
    )
    wanted = ("framework=huggingface", "recompute.settings=[selective:2]")
    done = harness(tmp_path, command, *wanted, "measure.steps=2", "measure.max_warmup_steps=3")
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = results(tmp_path).values()
    assert result.trial["workload"]["recompute"] == "selective:2"
    assert result.environment["source"]["framework"] == "huggingface"
    assert result.loss
    (log,) = tmp_path.glob("runs/x/trials/*/log.txt")
    assert "checkpointed [True, False]" in log.read_text()
