"""torchtitan's ConfigManager; from 0.3 on over the recipe of Llama-3 8B. Triton may be absent."""

import logging
import shlex
import sys
from importlib import import_module
from importlib.metadata import version

from .absent import Absentees

RECIPE = ("--module", "llama3", "--config", "llama3_8b")


def accept(question: str) -> None:
    """Raise what the program raises on options."""
    logging.disable()
    if not any(isinstance(finder, Absentees) for finder in sys.meta_path):
        sys.meta_path.append(Absentees("torchtitan"))
    release = version("torchtitan")
    config = import_module(f"torchtitan.config{'_manager' if release < '0.2' else ''}")
    recipe = RECIPE if release >= "0.3" else ()
    config.ConfigManager().parse_args([*recipe, *shlex.split(question.split("\n")[1])])
