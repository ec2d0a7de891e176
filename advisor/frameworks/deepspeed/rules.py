"""What DeepSpeed asserts about checkpointing and offloading, and what comes to nothing.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py configure,
runtime/zero/config.py, runtime/zero/stage3.py.
"""

from typing import Final

from advisor.frameworks.deepspeed.config_file import calls_deepspeed
from advisor.frameworks.torch.rules import Rules, stated

RULES: Final[Rules] = stated(
    "deepspeed",
    {"activation_checkpointing.huggingface": lambda _, job, __: not calls_deepspeed(job)},
)
