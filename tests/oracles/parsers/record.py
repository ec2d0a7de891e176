"""python -m tests.oracles.parsers.record [ID…]: each program's answers to what we print today, from
wheels fetched into a temporary folder, written to data/parsers/ID.json.gz."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import Struct

from advisor.frameworks.names import Framework

from .questions import questions

DATA: Final = Path(__file__).parents[1] / "data" / "parsers"
PIP: Final = "install -q --no-deps --only-binary :all: --python-version 3.12 --target".split()


class Program(Struct, frozen=True):
    """Who reads the lines of a framework's release. wheels: what holds its parser, the first by
    which the answers go; file: it reads the file, not the options."""

    framework: Framework
    release: str
    wheels: tuple[str, ...]
    name: str = ""
    file: bool = False

    def __str__(self) -> str:
        return f"{self.module}-{self.release}"

    @property
    def module(self) -> str:
        """That asks it."""
        return self.name or str(self.framework)

    def questions(self) -> list[str]:
        """What we print for it today."""
        return questions(self.framework, self.release, file=self.file)

    def answers(self, asked: Sequence[str], folder: str = "") -> list[str]:
        """In a process of its own, under what is installed or unpacked in `folder`."""
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), folder)))
        core = {"MEGATRON_CORE": folder} if folder and "megatron" in self.wheels[0] else {}
        run = subprocess.run(
            [sys.executable, "-m", "tests.oracles.parsers.answer", self.module],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path} | core,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        return list(json.loads(run.stdout.splitlines()[-1]))


CORES: Final = {"0.17": "0.17.1", "0.18": "0.18.2", "0.19": "0.19.2"}
PROGRAMS: Final = (
    *(Program(Framework.MEGATRON_LM, v, (f"megatron-core=={w}",)) for v, w in CORES.items()),
    Program(Framework.MEGATRON_BRIDGE, "0.6", ("megatron-bridge==0.6.2", "megatron-core==0.19.2")),
    Program(Framework.TORCHTITAN, "0.1", ("torchtitan==0.1.0",)),
    Program(Framework.TORCHTITAN, "0.2", ("torchtitan==0.2.2",)),
    Program(Framework.TORCHTITAN, "0.2", ("torchtitan==0.2.2",), "torchtitan_file", file=True),
    Program(
        Framework.TORCHTITAN,
        "0.3",
        ("torchtitan==0.3.0", "spmd_types==0.2.3", "torch_checkpointing==0.1.1"),
    ),
    Program(Framework.DEEPSPEED, "0.19", ("deepspeed==0.19.8",)),
    Program(
        Framework.HUGGINGFACE,
        "4",
        ("transformers==4.57.6", "huggingface_hub==0.36.2", "tokenizers==0.22.2"),
    ),
    Program(Framework.HUGGINGFACE, "5", ("transformers==5.23.0",)),
    Program(Framework.HUGGINGFACE, "5", ("accelerate==1.15.0",), "accelerate", file=True),
)
INSTALLED_FROM_SOURCE: Final = ("deepspeed",)
"""Without a wheel: asked where it is installed."""


def recorded(program: Program) -> dict[str, Any]:
    """`wheels`, and `answers` by question."""
    return dict(json.loads(gzip.decompress((DATA / f"{program}.json.gz").read_bytes())))


def record(program: Program) -> None:
    """Ask everything anew."""
    asked = program.questions()
    with TemporaryDirectory() as folder:
        there = program.wheels[0].partition("==")[0] in INSTALLED_FROM_SOURCE
        if not there:
            command = [sys.executable, "-m", "pip", *PIP, folder, *program.wheels]
            subprocess.run(command, check=True)
        answers = program.answers(asked, "" if there else folder)
    found = {"wheels": program.wheels, "answers": dict(zip(asked, answers, strict=True))}
    DATA.mkdir(exist_ok=True)
    text = json.dumps(found, indent=0)
    (DATA / f"{program}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    for one in PROGRAMS:
        if str(one) in (sys.argv[1:] or map(str, PROGRAMS)):
            record(one)
