"""python -m tests.oracles.heads.record: what heads of packages keep and need, from wheels fetched
into a temporary folder, to data/heads.json."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

DATA: Final = Path(__file__).parents[1] / "data" / "heads.json"
WHEELS: Final = {
    "trl": "trl==1.16.0",
    "trl_logits": "trl==1.16.0",
    "liger": "liger-kernel==0.8.5",
    "liger_grpo": "liger-kernel==0.8.5",
    "liger_preference": "liger-kernel==0.8.5",
    "verl": "verl==0.9.1",
    "verl_fused": "verl==0.9.1",
    "verl_triton": "verl==0.9.1",
    "verl_megatron": "verl==0.9.1",
    "openrlhf": "openrlhf==0.11.2",
    "automodel_chunked": "nemo-automodel==0.7.0",
    "torchtitan_chunked": "torchtitan==0.3.0",
}
"""By implementation. The code of the others is installed, or written in programs.py."""
PIP: Final = "-m pip install -q --no-deps --only-binary :all: --target"


def measured(name: str, folder: str) -> dict[str, list[int]]:
    """By case."""
    module = "tests.oracles.heads.measured"
    command = [sys.executable, "-m", module, name, folder]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """All of them."""
    found: dict[str, object] = {}
    with TemporaryDirectory() as folder:
        for wheel in dict.fromkeys(WHEELS.values()):
            target = str(Path(folder, wheel))
            subprocess.run([sys.executable, *PIP.split(), target, wheel], check=True)
            for name in (name for name, one in WHEELS.items() if one == wheel):
                found[name] = {"wheel": wheel, "cases": measured(name, target)}
    lines = (f'"{name}": {json.dumps(one)}' for name, one in found.items())
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
