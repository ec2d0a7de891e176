"""What an answer loads: counted, for a count does not depend on the machine. The time is in
tests/benchmarks/bench_startup.py."""

import subprocess
import sys

import pytest

from tests.test_architecture import HEAVY

pytestmark = pytest.mark.every_python

ANSWER = (
    "import io, sys, contextlib\n"
    "from advisor.cli.main import main\n"
    "with contextlib.redirect_stdout(io.StringIO()):\n"
    "    main({words!r}.split())\n"
    "print(*sys.modules)"
)
DENSE = "--model llama3_70b --gpus 32xH100"
MOST_MODULES = 220
"""Of ours, for a dense model: 217 when this was written, and room for some tables of rules."""
NOT_FOR_A_PAGE = {*HEAVY, "rich", "dataclasses", "shutil", "json.decoder", "difflib"}
OF_OTHERS = (
    "advisor.models.config_json.importer",
    "advisor.layers.megatron.mamba",
    "advisor.layers.megatron.latent_attention",
    "advisor.layers.megatron.moe",
    "advisor.layers.torchtitan",
    "advisor.layers.transformers",
    "advisor.frameworks.torchtitan",
    "advisor.frameworks.deepspeed",
    "advisor.frameworks.huggingface",
    "advisor.reading",
    "advisor.search.bounds",
    "advisor.search.found",
    "advisor.lint",
    "advisor.diagnose",
)
"""What the answer to a dense model under Megatron, as typed, needs nothing of."""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    return _loaded(DENSE)


def _loaded(words: str) -> list[str]:
    """Modules of a fresh process that has printed the page."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_an_answer_loads_few_of_our_modules(loaded: list[str]) -> None:
    ours = [name for name in loaded if name.startswith("advisor")]
    assert len(ours) <= MOST_MODULES


def test_an_answer_as_typed_loads_no_other_model_or_framework() -> None:
    assert not [name for name in _loaded(f"{DENSE} --quick") if name.startswith(OF_OTHERS)]


def test_an_answer_loads_nothing_heavy(loaded: list[str]) -> None:
    assert not NOT_FOR_A_PAGE & {*loaded, *(name.partition(".")[0] for name in loaded)}
