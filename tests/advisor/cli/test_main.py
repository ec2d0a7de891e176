"""The command line: what is accepted, what is refused in one line, exit codes, streams."""

import gc
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.cli import help, subcommands
from advisor.cli import main as cli
from advisor.cli.arguments import OutputFormat, parse
from advisor.frameworks.names import Framework
from advisor.report.command_help import FlagKind
from advisor.request.request import Request, SearchScope
from tests.advisor.tables import tables

TABLES = tables(__file__)

pytestmark = pytest.mark.every_python

JOB = ["--model", "llama3_70b", "--gpus", "32xH100"]
HEAVY = ("torch", "numpy", "pandas", "hydra", "omegaconf", "optuna", "matplotlib", "scipy")

Asked = Callable[[Answer], list[Request]]
Failing = Callable[[BaseException], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, explained: tuple) -> Asked:
    """Lets `advise` answer with a given Answer; the requests it gets are collected."""

    def install(advice: Answer) -> list[Request]:
        requests: list[Request] = []
        _answer_by(monkeypatch, lambda request, _, **more: requests.append(request) or advice)
        lines = ModuleType("advisor.search.explain")
        lines.memory_lines = lambda evaluation: explained[1]
        lines.time_lines = lambda evaluation: explained[2]
        monkeypatch.setitem(sys.modules, "advisor.search.explain", lines)
        return requests

    return install


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Lets `advise` raise an error."""

    def install(error: BaseException) -> None:
        def fail(request: Request, watch: object, *, remedies: bool) -> Answer:
            raise error

        _answer_by(monkeypatch, fail)

    return install


def _answer_by(monkeypatch: pytest.MonkeyPatch, advise: Callable) -> None:
    module = ModuleType("advisor.search.advise")
    module.advise = advise
    monkeypatch.setitem(sys.modules, "advisor.search.advise", module)


def error_line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line on stderr of a wrong request; asserts exit code 2 and an empty stdout."""
    assert cli.main(list(args)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("advise: ")
    return captured.err.removeprefix("advise: ").rstrip("\n")


# Parsing


def test_every_flag_reaches_its_field() -> None:
    degrees = {
        "tp": ("tensor_model_parallel_size", 4),
        "pp": ("pipeline_model_parallel_size", 8),
        "vpp": ("virtual_pipeline_model_parallel_size", 2),
        "cp": ("context_parallel_size", 1),
        "ep": ("expert_model_parallel_size", 1),
        "etp": ("expert_tensor_parallel_size", 1),
        "seq-length": ("seq_length", 8192),
        "micro-batch-size": ("micro_batch_size", 2),
        "global-batch-size": ("global_batch_size", 64),
    }
    numbers = " ".join(f"--{flag} {value}" for flag, (_, value) in degrees.items())
    overrides = "model.num_layers=12 layout.use_distributed_optimizer=false"
    others = (
        "--sp --precision BF16 --framework megatron_bridge --framework-version 0.5 "
        "--recompute none --recompute full:block:8 --search layout --memory-budget 76GiB --top 3 "
        "--show-rejected --explain 2 --plot out.svg --format json --config-dir configs"
    )
    options = parse([*JOB, *f"{numbers} {others} {overrides}".split()])
    assert options.request == Request(
        model="llama3_70b",
        gpus="32xH100",
        **dict(degrees.values()),
        sequence_parallel=True,
        precision="bf16",
        framework="megatron_bridge",
        framework_version="0.5",
        recompute=("none", "full:block:8"),
        search=SearchScope.LAYOUT,
        memory_budget="76GiB",
        overrides=tuple(overrides.split()),
        config_dir=Path("configs"),
    )
    assert (options.output, options.top, options.explain) == (OutputFormat.JSON, 3, 2)
    assert (options.show_rejected, options.plot) == (True, Path("out.svg"))
    nothing = parse(JOB)
    assert nothing.request == Request(model="llama3_70b", gpus="32xH100")
    assert (nothing.output, nothing.top, nothing.explain) == (OutputFormat.TABLE, None, None)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (flag.names[0], other)
        for flag in help.RANKING.flags
        if flag.kind is FlagKind.NUMBER
        for other in flag.names[1:]
    ],
)
def test_megatrons_long_names(short: str, long: str) -> None:
    read = [parse([*JOB, *words]).request for words in ([long, "2"], [short, "2"], [f"{long}=2"])]
    assert read[0] == read[1] == read[2]


def test_sequence_parallel_on_off_and_unset() -> None:
    states = {"": None, "--sp": True, "--sequence-parallel": True, "--no-sp": False}
    given = {flag: parse([*JOB, *flag.split()]).request.sequence_parallel for flag in states}
    assert given == states


def test_overrides_stand_anywhere() -> None:
    options = parse(["model.num_layers=4", *JOB, "job.seq_length=1", "--tp", "2", "layout.x=y"])
    assert options.request.overrides == ("model.num_layers=4", "job.seq_length=1", "layout.x=y")


def test_explain_without_a_number_is_of_the_first_sentence_and_eats_no_override() -> None:
    assert parse([*JOB, "--explain"]).explain == 0
    options = parse([*JOB, "--explain", "model.num_layers=4", "layout.x=y"])
    assert options.explain == 0
    assert options.request.overrides == ("model.num_layers=4", "layout.x=y")


# Wrong requests


@pytest.mark.parametrize(
    ("args", "words"),
    [*TABLES["test_wrong_flags_are_one_line"], (f"--tp {'9' * 5000}", "is too large")],
)
def test_wrong_flags_are_one_line(capsys, args: str, words: str) -> None:
    assert words in error_line(capsys, *JOB, *shlex.split(args))


def test_model_and_gpus_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_line(capsys, "--gpus", "8xH100").startswith("--model: is missing")
    assert error_line(capsys, "--model", "x").startswith("--gpus: is missing; write e.g. --gpus 32")


def test_an_error_is_printed_as_one_line(capsys, failing: Failing) -> None:
    failing(UserError("model", "a\nb", "is not\nvalid YAML"))
    assert error_line(capsys, *JOB) == "model = a b: is not valid YAML"
    failing(PermissionError(13, "Permission denied", "model.yaml"))
    assert error_line(capsys, *JOB) == "model.yaml: Permission denied"


def test_a_fault_of_ours_is_no_answer(capsys, monkeypatch, failing: Failing) -> None:
    """Exit code 1 would say that nothing fits."""

    failing(AssertionError())
    monkeypatch.setattr(sys, "argv", ["advise", *JOB])
    assert cli.command() == 70
    assert "AssertionError" in capsys.readouterr().err


def test_explain_beyond_the_last_row(capsys, answer: Asked, tight: Answer) -> None:
    answer(tight)
    line = error_line(capsys, *JOB, "--explain", "6")
    assert line == "--explain = 6: the answer has 5 rows; nearest: 5"


# Answers


def test_exit_code_says_whether_something_fits(capsys, answer, tight, hopeless) -> None:
    requests = answer(tight)
    assert cli.main(JOB) == 0
    assert requests == [Request(model="llama3_70b", gpus="32xH100")]
    answer(hopeless)
    assert cli.main(JOB) == 1
    assert capsys.readouterr().err == ""


def test_explain_follows_the_page(capsys, answer: Asked, tight: Answer) -> None:
    answer(tight)
    assert cli.main([*JOB, "--explain"]) == 0
    page, _, explanation = capsys.readouterr().out.partition("Row 1, selective:mlp: memory")
    assert "is the choice" in page
    assert "total: the reserved peak" in explanation


def test_the_row_that_is_explained_is_not_folded(capsys, answer: Asked, tight: Answer) -> None:
    first, _, *others = tight.candidates
    twin = replace(first, rank=2, same_as=1, dominated_by=1, folded=True)
    answer(replace(tight, candidates=(first, twin, *others)))
    shown = {}
    for words in ([], ["--explain", "2"], ["--top", "5"], ["--front"]):
        cli.main([*JOB, *words])
        page = capsys.readouterr().out.partition("Row 1 is the choice")[0]
        shown[" ".join(words)] = re.findall(r"^ (\d)  ", page, re.MULTILINE)
    assert shown == {
        "": ["1", "3", "4", "5"],
        "--explain 2": ["1", "2", "3", "4", "5"],
        "--top 5": ["1", "2", "3", "4", "5"],
        "--front": ["1", "3", "4"],
    }


def test_formats(capsys: pytest.CaptureFixture[str], answer: Asked, tight: Answer) -> None:
    answer(tight)
    assert cli.main([*JOB, "--format", "json", "--top", "2", "--explain", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["candidates"]) == 2
    assert report["explain"]["rank"] == 1
    assert cli.main([*JOB, "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 6
    assert cli.main([*JOB, "--format", "flags"]) == 0
    flags = "--recompute-granularity selective --recompute-modules mlp\n"
    assert capsys.readouterr().out == flags


def test_flags_of_what_does_not_fit_come_with_a_warning(capsys, answer, hopeless) -> None:
    answer(hopeless)
    assert cli.main([*JOB, "--format", "flags"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("--recompute-granularity full")
    first, second = captured.err.splitlines()
    assert first == "advise: on top of recipe llama3_70b_32xh100"
    assert second.startswith("advise: Nothing fits in 77.0 GiB. Nearest: row 1 ")


def test_layout_flags_are_given_where_the_advisor_chose_the_layout(
    capsys: pytest.CaptureFixture[str], answer: Asked, make_advice: Callable, make_evaluation
) -> None:
    answer(make_advice(make_evaluation("none", 10), assumptions=()))
    tp = "--tensor-model-parallel-size 4"
    for args in ("", "--tp 4", "--tp 4 --search layout"):
        for form in ("--format flags", ""):
            cli.main([*JOB, *form.split(), *args.split()])
            assert tp in capsys.readouterr().out
    answer(make_advice(make_evaluation("none", 10)))  # a preset gave it
    cli.main([*JOB, "--format", "flags"])
    assert capsys.readouterr().out == "\n"
    preset = "preset llama3_70b_32xh100"
    for changed in (
        {"assumptions": (preset, "the preset's layout and batch per replica; DP 4")},
        {"assumptions": (preset, "options of another_recipe")},
        {"recipe_differs": ("recipe llama3_70b_32xh100 is for fp8_current, not bf16",)},
        {"recipe_framework": None},
        {"recipe_framework": "megatron_bridge"},
    ):
        answer(make_advice(make_evaluation("none", 10), **changed))
        cli.main([*JOB, "--format", "flags"])
        assert tp in capsys.readouterr().out


def test_what_flags_leave_omitted_is_talk(capsys: pytest.CaptureFixture[str]) -> None:
    nemo = [*JOB, "--framework", "nemo", "--tp", "8", "--recompute", "none", "--format", "flags"]
    assert cli.main(nemo) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert captured.err.startswith("advise: set this in the recipe: precision bf16, sequence ")
    cli.main([*JOB, "--tp", "8", "--recompute", "none", "--format", "flags"])
    variable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert capsys.readouterr().err == f"advise: with {variable} in the environment\n"


def test_plot_writes_the_file_and_tells_stderr(capsys, answer, tight, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    answer(tight)
    assert cli.main([*JOB, "--plot", str(tmp_path / "out.svg"), "--format", "flags"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("--recompute-granularity")
    assert captured.err.startswith(f"advise: wrote {tmp_path / 'out.svg'}\n")
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")


def test_plot_without_matplotlib_is_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = error_line(capsys, *JOB, "--plot", "out.png")
    command = "pip install -e '.[report]'"
    assert line == f"--plot out.png: needs matplotlib; in the checkout run: {command}"


# Help and the rest of the process


def test_no_arguments_give_a_short_help_with_one_example(capsys) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("advise --model") == 1
    assert captured.err.count("\n") <= 6


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_flag(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert cli.main([*JOB, flag]) == 0
    text = capsys.readouterr().out
    for flag_of_help in help.RANKING.flags:
        for name in flag_of_help.names:
            assert name in text, name
    for name in (*help.SUBCOMMANDS, "Exit codes: 0", "1 nothing fits", "2 the request is wrong"):
        assert name in text
    for name in (*Precision, *Framework, "selective:N", "op:save_attention", "budget:0.5"):
        assert name in text
    assert len(text.splitlines()) <= 100


def test_every_subcommand_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(subcommands.RUN) == set(help.SUBCOMMANDS)
    for name in help.SUBCOMMANDS:
        assert cli.main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"advise {name}")
    assert gc.isenabled()
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("advise ")
    assert gc.isenabled(), "garbage is collected again afterwards"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("models", "llama3_70b"),
        ("gpus", "H100-SXM-80GB"),
        ("rules", "refused"),
        ("recipes", "deepseek_v3"),
        ("keys", "--tensor-model-parallel-size"),
    ],
)
def test_listings(capsys: pytest.CaptureFixture[str], name: str, word: str) -> None:
    assert cli.main([name]) == 0
    text = capsys.readouterr().out
    assert word in text
    assert max(map(len, text.splitlines())) <= 100


def test_keys_are_shown_with_the_options_of_a_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "--framework", "deepspeed", "optimizer_cpu"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "job.optimizer_cpu_offload=false"
    assert "true or false: zero_optimization.offload_optimizer.device" in text
    assert "matches no KEY" in error_line(capsys, "keys", "no_such_key")


def test_diagnose_names_the_cause_of_a_log(capsys, tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert cli.main(["diagnose", str(log)]) == 0
    assert "line 1" in capsys.readouterr().out
    log.write_text("all is well\n")
    assert cli.main(["diagnose", str(log)]) == 1
    capsys.readouterr()
    assert "cannot be read" in error_line(capsys, "diagnose", str(tmp_path / "none.log"))


def test_lint_reads_flags_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = "--recompute-granularity full --recompute-method uniform"
    assert cli.main(["lint", *flags.split()]) == 1
    from_flags = capsys.readouterr().out
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun pretrain_gpt.py {flags}\n")
    assert cli.main(["lint", str(script), "--framework-version", "0.16"]) == 1
    for text in (from_flags, capsys.readouterr().out):
        assert "full_needs_num_layers" in text
    legal = ["--recompute-granularity", "full", "--recompute-method", "uniform"]
    assert cli.main(["lint", *legal, "--recompute-num-layers", "1", "--num-layers", "4"]) == 0


@pytest.mark.parametrize("args", ["--framework-version", "--framework-version 0.16", "--fix --x"])
def test_lint_needs_something_to_lint(capsys: pytest.CaptureFixture[str], args: str) -> None:
    assert re.search("needs a (value|FILE)", error_line(capsys, "lint", *args.split()))
    assert cli.main(["lint", "--skip-unknown", __file__]) == 0
    assert "nothing was checked" in capsys.readouterr().err


WRONG = ("diagnose", "diagnose a b", "lint", "models --x", "rules --x", "rules a b", "keys a b")


@pytest.mark.parametrize("args", [*WRONG, "keys --framework-version 0.16", "recipes a b"])
def test_wrong_subcommand_arguments(capsys: pytest.CaptureFixture[str], args: str) -> None:
    name = args.split()[0]
    assert error_line(capsys, *args.split()).startswith(f"{name}: ")


def test_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], failing: Failing) -> None:
    failing(KeyboardInterrupt())
    assert cli.main(JOB) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_while_the_rest_is_imported_is_quiet(capsys, monkeypatch) -> None:
    def interrupt(name: str) -> object:
        raise KeyboardInterrupt

    module = ModuleType("advisor.cli.commands")
    module.__getattr__ = interrupt
    monkeypatch.setitem(sys.modules, "advisor.cli.commands", module)
    assert cli.main(JOB) == 130
    assert capsys.readouterr() == ("", "")
    assert "msgspec" not in top_level("import sys, advisor.cli.main")


def process(*args: str, **options: object) -> subprocess.Popen[str]:
    """A fresh `advise` process from another directory than the repository's."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": "/", "text": True}
    command = [sys.executable, "-m", "advisor.cli.main", *args]
    return subprocess.Popen(command, env=environment, **(pipes | options))


def test_a_closed_pipe_is_no_error() -> None:
    child = process("rules")
    assert child.stdout
    child.stdout.close()
    assert child.stderr
    assert child.stderr.read() == ""
    assert child.wait() == 0


def test_a_closed_stdout_is_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["gpus"]) == 2
    assert capsys.readouterr().err == "advise: stdout: is closed, so the answer cannot be written\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        child = process("gpus", stdout=full)
        assert child.wait() == 2
    words = "advise: stdout: cannot write the answer: No space left on device\n"
    assert child.stderr.read() == words


def test_a_terminal_without_utf8_is_no_error() -> None:
    out, err = process("gpus", env={"PYTHONIOENCODING": "ascii"}).communicate()
    assert err == ""
    assert "H100" in out


MACHINE = "advisor.report.plain_advice, advisor.report.setting_flags"


def top_level(code: str) -> set[str]:
    """Packages that a fresh process holds after `code`, or has tried to import."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code + "; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    *timed, loaded = done.stderr.splitlines()
    names = [*loaded.split(), *(line.rpartition("|")[2].strip() for line in timed)]
    return {name.partition(".")[0] for name in names}


PAGES = "advisor.report.advice_page, advisor.report.explain_page"


@pytest.mark.parametrize("modules", ["advisor.cli.main", f"advisor.cli.commands, {MACHINE}", PAGES])
def test_a_fresh_import_loads_nothing_heavy(modules: str) -> None:
    assert not top_level(f"import sys, {modules}") & {*HEAVY, "rich"}
