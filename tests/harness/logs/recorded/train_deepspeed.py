"""A tiny model under DeepSpeed's engine: what the README here names was printed by this."""

import sys

import deepspeed
import torch
from deepspeed.utils.logging import set_log_level_from_string

CONFIG = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "steps_per_print": 4,
    "wall_clock_breakdown": True,
}
WIDTH, STEPS = 256, 12


def main() -> None:
    """Train for a few steps, with gloo on the CPU."""
    torch.set_num_threads(1)
    set_log_level_from_string("info")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # one process needs no C++ build
    deepspeed.init_distributed("gloo")
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)])
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    for _ in range(STEPS * CONFIG["gradient_accumulation_steps"]):
        data = torch.randn(CONFIG["train_micro_batch_size_per_gpu"], WIDTH)
        engine.backward(engine(data).square().mean())
        engine.step()


if __name__ == "__main__":
    sys.exit(main())
