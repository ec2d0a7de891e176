"""What CONTRIBUTING says of adding a recompute label and an option, done on a copy of the advisor.

Each patch is the whole change: as many source files as CONTRIBUTING names, and the rest follows.
Where a patch applies no more, make the change anew and write its `git diff` here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent
MIXTRAL = "--model mixtral_8x7b --gpus 64xH100 --framework-version main --show-rejected"
SCRIPT = "torchrun pretrain_gpt.py --num-layers 2 --residual-scale-in-fp32\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="applies a patch with git")


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The advisor with the patch that the test is marked with."""
    for folder in ("advisor", "configs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    patch = PATCHES / request.param
    subprocess.run(["git", "apply", "-p1", str(patch)], cwd=tmp_path, check=True)
    return tmp_path


def files_of(patch: str) -> list[str]:
    """Files that a patch changes."""
    lines = (PATCHES / patch).read_text().splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ ")]


def advise(folder: Path, *words: str) -> str:
    """What the advisor in `folder` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.stdout


def test_a_label_is_three_files_and_an_option_one_row() -> None:
    assert len(files_of("recompute_label.patch")) == 3
    assert len(files_of("option.patch")) == 1


@pytest.mark.parametrize("copy", ["recompute_label.patch"], indirect=True)
def test_a_new_label_is_ranked_refused_and_printed(copy: Path) -> None:
    settings = ("selective:mlp_norm", "selective:layernorm", "selective:layernorm,mlp_norm")
    page = advise(
        copy, *MIXTRAL.split(), *(word for setting in settings for word in ("--recompute", setting))
    )
    assert " 1  selective:mlp_norm " in page
    line = " ".join(page.replace("\\\n", " ").split())  # a line is broken where it is too long
    assert "--recompute-granularity selective --recompute-modules mlp_norm" in line
    assert "mlp_norm is one of the norms that layernorm replays. Fix: drop mlp_norm" in page


@pytest.mark.parametrize("copy", ["option.patch"], indirect=True)
def test_a_new_option_is_read_where_its_release_has_it(copy: Path) -> None:
    (copy / "train.sh").write_text(SCRIPT)
    page = advise(copy, "lint", "--framework-version", "main", "train.sh")
    assert "predictions do not include residual_scale_in_fp32" in page
    assert "residual_scale_in_fp32" in advise(
        copy, "lint", "--framework-version", "0.16", "train.sh"
    )
