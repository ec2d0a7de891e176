"""A built wheel holds the advisor with its configuration, and works outside the checkout.

Slow (one build, one virtual environment): skipped where the build backend cannot be fetched.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    *("advisor", "harness", "configs"),
    *("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"),
)
# What a build without network says: the backend cannot be had, which is not the package's fault.
NO_BACKEND = ("No matching distribution found for hatchling", "Could not find a version that")


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run outside the checkout: nothing of it is on the path."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=clean, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, so that the build leaves nothing in the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for part in PARTS:
        path = ROOT / part
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / part, ignore=ignored)
        else:
            shutil.copy(path, source / part)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir"]
    done = run([*pip, target, source], target)
    if done.returncode and any(text in done.stderr for text in NO_BACKEND):
        pytest.skip("the build backend cannot be fetched")
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; its dependencies are those of this interpreter."""
    folder = tmp_path_factory.mktemp("installed")
    done = run([sys.executable, "-m", "venv", "--without-pip", "venv"], folder)
    if done.returncode:
        pytest.skip("no virtual environment can be made")
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--target"]
    done = run([*pip, site, wheel], folder)
    assert done.returncode == 0, done.stderr
    ours = {str(path) for path in (ROOT, ROOT / "tests")}
    borrowed = [path for path in sys.path if path.endswith("site-packages") and path not in ours]
    for number, path in enumerate(borrowed):
        # a path file's own path files are not read, so an editable advisor there stays unseen
        (site / f"borrowed{number}.pth").write_text(path + "\n", encoding="utf-8")
    return folder / "venv" / "bin"


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_configuration_file_is_in_the_wheel(wheel: Path) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    assert files
    assert {f"advisor/{name}" for name in files} <= names(wheel)
    assert any(name.startswith("advisor/configs/failures/") for name in names(wheel))


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("advisor", "harness")
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules <= names(wheel)


def test_types_and_schemas_are_in_the_wheel(wheel: Path) -> None:
    typed = {"advisor/py.typed", "harness/py.typed"}
    schemas = {"advisor/api/advice.schema.json", "harness/api/result.schema.json"}
    assert typed | schemas <= names(wheel)


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    roots = {name.split("/")[0] for name in names(wheel)}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"advisor", "harness"}
    assert not [name for name in names(wheel) if "__pycache__" in name]


def test_the_wheel_reads_its_own_configuration(installed: Path, tmp_path: Path) -> None:
    code = (
        "import advisor.base.configuration as c\n"
        "from advisor.diagnose.catalog import load_catalog\n"
        "print(c.packaged_configs()); print(len(load_catalog()))"
    )
    done = run([installed / "python", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    folder, count = done.stdout.split("\n")[:2]
    assert Path(folder).is_relative_to(installed.parent)
    assert int(count) > 90


def test_an_answer_of_the_wheel_loads_no_reader_of_yaml(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from advisor.cli.main import main\n"
        "main('--model llama3_70b --gpus 32xH100'.split())\n"
        "sys.exit('yaml' in sys.modules)"
    )
    done = run([installed / "python", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    entry = "from advisor.cli.main import main; import sys; sys.exit(main(['--help']))"
    done = run([installed / "python", "-c", entry], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--model" in done.stdout
    assert str(ROOT) not in done.stdout


def test_the_extra_all_is_every_extra_but_those_of_a_gpu_and_of_development() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (whole,) = extras["all"]
    name, _, named = whole.removesuffix("]").partition("[")
    assert name == project["name"]
    assert set(named.split(",")) == extras.keys() - {"all", "gpu", "check", "docs", "dev"}


def test_every_extra_that_a_hint_or_a_page_names_is_declared() -> None:
    """And none is asked of a registry: nothing of this name is published there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.yml")]
    sources = [path for part in ("advisor", "harness") for path in (ROOT / part).rglob("*.py")]
    named = re.compile(r"""(?:pip install .*?\[|install_hint\(["'])([a-z,]+)["'\]]""")
    found = set()
    for path in (*pages, *sources):
        text = path.read_text(encoding="utf-8")
        assert "install 'recompute-advisor" not in text, path
        found |= {extra for match in named.findall(text) for extra in match.split(",")}
    assert {"harness", "report", "megatron", "sweep", "slurm"} <= found <= extras.keys()


def test_the_entry_point_is_declared(wheel: Path) -> None:
    (entry,) = [name for name in names(wheel) if name.endswith("entry_points.txt")]
    with zipfile.ZipFile(wheel) as archive:
        assert "advise = advisor.cli.main:command" in archive.read(entry).decode()


def test_ci_has_a_version_of_all_that_the_tests_need_and_no_path_of_a_machine() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pins = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {pin.partition("==")[0].lower() for pin in pins}
    asked = [name for part in ("check", "docs", "dev") for name in extras[part]]
    names = {re.match(r"[\w-]+", name)[0].lower() for name in asked}
    assert names - {"recompute-advisor"} <= pinned
