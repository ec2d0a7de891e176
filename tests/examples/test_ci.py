"""The CI files, as they are: every one of their commands is run (those of docs/ci.md: tests/docs).

What they leave to their user is set through the variables that they declare. `pip` is the only
program that is not the real one: it checks that what it is asked to install is a checkout of this
project, and the extras against its pyproject.toml.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

pytest.importorskip("hydra")
pytest.importorskip("torch")
junitparser = pytest.importorskip("junitparser")

ROOT = Path(__file__).parents[2]
FILES = ("github-actions.yml", "gitlab-ci.yml")
RECORDED = ROOT / "tests/harness/fixtures/recorded_regression"
TINY = (
    "recompute=none device=cpu measure.steps=2 measure.min_warmup_steps=1 "
    "measure.max_warmup_steps=1 model.num_layers=1 measure.memory_timeline=false"
)
QUICK = {
    "ADVISOR": str(ROOT),
    "EXPERIMENT": "tiny_cpu",
    "RUN_OPTIONS": TINY,
    "CPU_OPTIONS": TINY,
    **dict.fromkeys(("GOLDENS", "CPU_GOLDENS"), "goldens"),
    "LINT": "scripts",
}
"""What a user without a GPU would set."""
PIP = """\
import os, sys, tomllib
words = sys.argv[1:]
assert words[0] == "install" and len(words) == 2, words
folder, _, extras = words[1].rstrip("]").partition("[")
assert os.sep in folder, "a bare name would be looked up in a registry"
project = tomllib.load(open(os.path.join(folder, "pyproject.toml"), "rb"))["project"]
assert project["name"] == "recompute-advisor", project["name"]
assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"]), extras
"""


TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --bf16"


class Script(Struct, frozen=True, dict=True):
    """Lines of one job in their order; the last ones run whatever became of the others."""

    lines: tuple[str, ...]
    always: tuple[str, ...] = ()


class Pipeline(Struct, frozen=True, dict=True):
    """What a CI file declares."""

    variables: dict[str, str]
    jobs: dict[str, Script]


def pipeline(name: str) -> Pipeline:
    values = yaml.safe_load((ROOT / "examples/ci" / name).read_text(encoding="utf-8"))
    if name.startswith("github"):
        jobs = {job: github(content["steps"]) for job, content in values["jobs"].items()}
        return Pipeline(values["env"], jobs)
    jobs = {
        job: Script(tuple(content["script"]), tuple(content.get("after_script", ())))
        for job, content in values.items()
        if job in values["stages"] and job != "comment"
    }
    variables = {k: v for k, v in values["variables"].items() if not k.startswith(("GIT_", "PIP_"))}
    return Pipeline(variables, jobs)


def github(steps: list[dict[str, Any]]) -> Script:
    def lines(always: bool) -> Iterator[str]:
        for step in steps:
            if "run" in step and (step.get("if") == "always()") is always:
                yield from step["run"].splitlines()

    return Script(tuple(lines(always=False)), tuple(lines(always=True)))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """`advise`, `harness` and `pip`, as an installation puts them on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    check = tmp_path / "pip.py"
    check.write_text(PIP)
    commands = {
        "advise": "-m advisor.cli.main",
        "harness": "-m harness.cli.main",
        "pip": str(check),
    }
    for name, arguments in commands.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    return folder


class Shell(Struct, frozen=True, dict=True):
    """Runs lines as a CI system does: in a checkout, each with bash that ends at an error."""

    folder: Path
    programs: Path
    variables: Mapping[str, str]

    def run(self, line: str) -> "subprocess.CompletedProcess[str]":
        inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "GITHUB_STEP_SUMMARY")}
        path = os.pathsep.join([str(self.programs), os.environ.get("PATH", "")])
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", line],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=inherited | {"PATH": path, "PYTHONPATH": str(ROOT)} | dict(self.variables),
        )

    def job(self, script: Script) -> Iterator[tuple[str, int]]:
        """Lines that ran, with their exit codes."""
        for line in script.lines:
            done = self.run(line)
            yield line, done.returncode
            if done.returncode:
                break
        for line in script.always:
            yield line, self.run(line).returncode


def only(script: Script, command: str) -> Script:
    """The lines of one command, and what always runs."""
    return Script(tuple(line for line in script.lines if command in line), script.always)


def test_both_files_are_the_same_pipeline() -> None:
    """So that what is run of one holds for the other."""
    ours, theirs = map(pipeline, FILES)
    assert ours == theirs
    said = "a name without a slash would be fetched from a registry, where nothing is called so"
    assert ours.variables["ADVISOR"].startswith("./"), said


def test_the_commands_run_as_they_are(tmp_path: Path, programs: Path) -> None:
    """Without a golden the gate has no verdict, and the report is there all the same."""
    declared = pipeline(FILES[0])
    assert set(QUICK) < set(declared.variables)
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    variables = declared.variables | QUICK | summary
    shell = Shell(tmp_path, programs, variables)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.sh").write_text(TRAIN)
    (tmp_path / "scripts/other.yaml").write_text("a: [1")
    ran = [line for job in declared.jobs.values() for line in shell.job(job)]
    codes = [code for line, code in ran if "harness compare" not in line]
    assert not any(codes), ran
    assert [code for line, code in ran if "harness compare" in line] == [3, 3]
    assert len(ran) == sum(len(job.lines + job.always) for job in declared.jobs.values())
    assert "OK " in (tmp_path / "lint.md").read_text()
    assert (tmp_path / "cpu.md").read_text().startswith("#")
    assert (tmp_path / "advice.json").stat().st_size > 1000
    report = tmp_path / variables["RUN"] / "report"
    (suite,) = junitparser.JUnitXml.fromfile(str(report / "junit.xml"))
    assert suite.skipped == 1
    assert (report / "report.html").exists()
    assert "No verdict (exit 3): 1 NEW" in (tmp_path / "summary.md").read_text()


def test_a_wrong_setting_fails_the_job_and_is_reported(tmp_path: Path, programs: Path) -> None:
    declared = pipeline(FILES[0])
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.sh").write_text(TRAIN + " --recompute-granularity full\n")
    variables = declared.variables | {"LINT": "scripts"}
    ran = list(Shell(tmp_path, programs, variables).job(only(declared.jobs["lint"], "advise lint")))
    assert [code for _, code in ran] == [1, 0, 0, 0, 0], ran
    for name in ("lint.sarif", "lint.xml", "lint.md"):
        assert "full_needs_method" in (tmp_path / name).read_text()


def test_the_comment_is_what_the_jobs_wrote(tmp_path: Path, programs: Path) -> None:
    (programs / "curl").write_text('#!/bin/sh\necho "$@" > posted\n')
    (programs / "curl").chmod(0o755)
    (tmp_path / "lint.md").write_text("lint\n")
    values = yaml.safe_load((ROOT / "examples/ci/gitlab-ci.yml").read_text())
    shell = Shell(tmp_path, programs, {"COMMENT_TOKEN": "t", "CI_API_V4_URL": "u"})
    assert [shell.run(line).returncode for line in values["comment"]["script"]] == [0, 0]
    assert (tmp_path / "comment.md").read_text() == "lint\n"
    assert "body@comment.md u/projects" in (tmp_path / "posted").read_text()


@pytest.mark.parametrize("hook", yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()))
def test_the_hooks_pass_over_what_is_not_theirs(
    tmp_path: Path, programs: Path, hook: dict[str, Any]
) -> None:
    files = {"values.yaml": "a: {{ .b }}\n", "x.py": "print(1)\n", "y.sh": "echo don't\n"}
    for name, text in (files | {"train.sh": TRAIN + " --recompute-granularity full\n"}).items():
        assert re.search(hook["files"], name)
        (tmp_path / name).write_text(text)
    shell = Shell(tmp_path, programs, {})
    assert [shell.run(f"{hook['entry']} {name}").returncode for name in files] == [0, 0, 0]
    fixes = "--fix" in hook["entry"]
    assert shell.run(f"{hook['entry']} {' '.join(files)} train.sh").returncode == int(not fixes)
    assert ("--recompute-method uniform" in (tmp_path / "train.sh").read_text()) is fixes


def test_the_recorded_regression_fails_the_job(tmp_path: Path, programs: Path) -> None:
    declared = pipeline(FILES[0])
    run = tmp_path / "run"
    run.mkdir()
    for path in RECORDED.glob("*/result.json"):
        (run / path.parent.name).mkdir()
        (run / path.parent.name / "result.json").write_bytes(path.read_bytes())
    variables = declared.variables | {"RUN": str(run), "GOLDENS": str(ROOT / "results/golden")}
    gate = only(declared.jobs["measured"], "harness compare")
    ran = list(Shell(tmp_path, programs, variables).job(gate))
    assert [code for _, code in ran] == [1, 0, 0], ran
    (suite,) = junitparser.JUnitXml.fromfile(str(run / "report/junit.xml"))
    assert (suite.failures, suite.errors) == (2, 2)


def test_a_job_that_cannot_fit_stops_at_the_first_gate(tmp_path: Path, programs: Path) -> None:
    declared = pipeline(FILES[0])
    variables = declared.variables | {"MODEL": "llama3_70b", "GPUS": "8xA100-40GB"}
    ran = list(Shell(tmp_path, programs, variables).job(only(declared.jobs["fits"], "advise")))
    assert [code for _, code in ran] == [1]


@pytest.mark.parametrize("name", FILES)
def test_what_is_kept_is_what_the_report_writes(name: str) -> None:
    text = (ROOT / "examples/ci" / name).read_text(encoding="utf-8")
    assert re.search(r"RUN( }})?}?/report\b", text)
    if name.startswith("gitlab"):
        assert yaml.safe_load(text)["measured"]["artifacts"]["reports"] == {
            "junit": "$RUN/report/junit.xml"
        }


def test_the_page_knows_every_exit_code_and_file(tmp_path: Path) -> None:
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    for code in range(5):
        assert f"\n| {code} | " in text
    for name in ("report.html", "report.md", "junit.xml", "trials.csv", "bmf.json", "figures/"):
        assert f"`{name}`" in text


def test_the_extras_named_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {"matplotlib", "pandas", "jinja2", "pyarrow"} <= {
        re.split(r"[^a-z0-9]", one)[0] for one in extras["report"]
    }
