"""python -m tests.oracles.parsers.record [ID…]: each program's answers to what we print today, from
wheels fetched into a temporary folder, to data/parsers/ID.json.gz."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import Struct

from advisor.frameworks.names import Framework

from .questions import questions

DATA: Final = Path(__file__).parents[1] / "data" / "parsers"
PIP: Final = "-m pip install -q --no-deps --only-binary :all: --python-version 3.12 --target"


class Program(Struct, frozen=True):
    """Who reads what we print for a framework's release. wheels: what holds its parser, the first
    its own; none: asked where it is installed. file: it reads the file. name: in programs.py."""

    framework: Framework
    release: str
    wheels: str = ""
    file: bool = False
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.framework}{'_file' if self.file else ''}-{self.release}"

    def questions(self) -> list[str]:
        """What we print for it today."""
        return questions(self.framework, self.release, file=self.file)

    def answers(self, asked: Sequence[str], folder: str = "") -> list[str]:
        """Under what is installed, or unpacked in `folder`."""
        variable = "MEGATRON_CORE" if self.wheels.startswith("megatron") else "PYTHONPATH"
        env = os.environ | ({variable: folder} if folder else {})
        module = "tests.oracles.parsers.programs"
        command = [sys.executable, "-m", module, self.name or self.framework]
        given = {"input": json.dumps(asked), "env": env, "cwd": Path(__file__).parents[3]}
        run = subprocess.run(command, capture_output=True, text=True, **given)
        assert run.returncode == 0, run.stderr[-2000:]
        return list(json.loads(run.stdout.splitlines()[-1]))


_BRIDGE: Final = "megatron-bridge==0.6.2 megatron-core==0.19.2"
_TITAN: Final = "torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing==0.1.1"
_HF_4: Final = "transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2"
PROGRAMS: Final = (
    Program(Framework.MEGATRON_LM, "0.17", "megatron-core==0.17.1"),
    Program(Framework.MEGATRON_LM, "0.18", "megatron-core==0.18.2"),
    Program(Framework.MEGATRON_LM, "0.19", "megatron-core==0.19.2"),
    Program(Framework.MEGATRON_BRIDGE, "0.6", _BRIDGE),
    Program(Framework.TORCHTITAN, "0.1", "torchtitan==0.1.0"),
    Program(Framework.TORCHTITAN, "0.2", "torchtitan==0.2.2"),
    Program(Framework.TORCHTITAN, "0.2", "torchtitan==0.2.2", file=True),
    Program(Framework.TORCHTITAN, "0.3", _TITAN),
    Program(Framework.DEEPSPEED, "0.19"),
    Program(Framework.HUGGINGFACE, "4", _HF_4),
    Program(Framework.HUGGINGFACE, "5", "transformers==5.23.0"),
    Program(Framework.HUGGINGFACE, "5", "accelerate==1.15.0", file=True, name="accelerate"),
    Program(Framework.TRL, "1.16", "trl==1.16.0"),
    Program(Framework.LLAMA_FACTORY, "0.9", "llamafactory==0.9.5 peft==0.21.2"),
    Program(Framework.AXOLOTL, "0.21", "axolotl==0.21.0 peft==0.21.2", file=True),
    Program(Framework.VERL, "0.9", "verl==0.9.1"),
    Program(Framework.OPENRLHF, "0.11", "openrlhf==0.11.2"),
)


def recorded(program: Program) -> dict[str, str]:
    """Answers by question."""
    found: dict[str, Any] = json.loads(gzip.decompress((DATA / f"{program}.json.gz").read_bytes()))
    assert found["wheels"] == program.wheels, f"{program} was recorded of {found['wheels']}"
    return dict(found["answers"])


def record(program: Program) -> None:
    """Ask everything anew."""
    asked = program.questions()
    with TemporaryDirectory() as folder:
        if program.wheels:
            words = [*PIP.split(), folder, *program.wheels.split()]
            subprocess.run([sys.executable, *words], check=True)
            rmtree(Path(folder, "tests"), ignore_errors=True)  # verl's, in place of ours
        answers = program.answers(asked, folder if program.wheels else "")
    found = {"wheels": program.wheels, "answers": dict(zip(asked, answers, strict=True))}
    text = json.dumps(found, indent=0).encode()
    (DATA / f"{program}.json.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    for one in PROGRAMS:
        if str(one) in (sys.argv[1:] or map(str, PROGRAMS)):
            record(one)
