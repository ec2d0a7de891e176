"""What an answer loads: counted, for a count does not depend on the machine. The time is in
tests/benchmarks/bench_startup.py."""

import re
import subprocess
import sys
from pathlib import Path

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
MOST_MODULES = 212
"""Of ours, for a dense model: 209 when this was written, and room for some tables of rules."""
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
CLEAN = Path(__file__).parents[1] / "lint" / "configurations" / "clean"
FILES = {
    "llama3_8b_program_in_variable.sh --gpus 8xH100": "megatron",
    "bridge_dumped_run_config.yaml --gpus 8xH100": "megatron",
    "torchtitan_llama3_70b.toml --gpus 64xH100": "torchtitan",
    "run_clm_fsdp.sh --gpus 8xH100": "huggingface",
    "deepspeed_zero3.json --gpus 8xH100 --model llama3_8b --seq-length 4096": "deepspeed",
    "axolotl_fft_8b.yaml --gpus 8xH100": "axolotl",
    "llamafactory_full_sft.yaml --gpus 8xH100": "llama_factory",
    "verl_megatron_grpo.sh --gpus 8xH100": "verl",
}
"""What is checked, and whose it is."""
READERS = re.compile(r"advisor\.frameworks\.(megatron|torchtitan|deepspeed)\.(?:lint\.)?reader$")


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


@pytest.mark.parametrize("words", FILES)
def test_a_file_loads_no_other_frameworks_reader(words: str) -> None:
    loaded = _loaded(f"check {CLEAN}/{words}")
    read = {found[1] for name in loaded if (found := READERS.match(name))}
    whose = FILES[words]
    # verl's Megatron keys are Megatron's, and its reader comes with both trainers
    assert read <= ({whose, "megatron"} if whose == "verl" else {whose})
    assert any(name.startswith(f"advisor.frameworks.{whose}.") for name in loaded)
    dialects = {"axolotl", "llama_factory", "verl", "trl", "slime"} - {whose}
    assert not {f"advisor.frameworks.{name}.framework" for name in dialects} & {*loaded}
