"""Options of Megatron-LM's command line without effect on a step's memory and time, by subject.

Read in the wheels megatron-core 0.17.1, 0.18.2 and 0.19.2: training/arguments.py and the classes of
training/config that it makes options of.
"""

from pathlib import Path
from typing import Final

_BLOCKS: Final = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split("\n\n")
ASIDE: Final = {subject: names for subject, _, names in (b.partition(":\n") for b in _BLOCKS)}
"""Subject -> names of options, which Megatron-LM writes with dashes."""
