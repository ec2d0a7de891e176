"""DeepSpeed's DeepSpeedConfig of the JSON; the GPUs are as many as the batch is for."""

import json
import shlex
from unittest.mock import patch


def accept(question: str) -> None:
    """Raise what the program raises on a configuration."""
    from deepspeed.runtime import config

    brought, file = question.split("\n")
    gpus = int(shlex.split(brought)[0])
    with patch.multiple(config.dist, get_rank=lambda: 0, get_world_size=lambda: gpus):
        config.DeepSpeedConfig(json.loads(file))
