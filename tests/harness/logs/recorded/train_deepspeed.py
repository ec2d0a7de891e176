"""A tiny model under DeepSpeed's engine, or its pipeline engine with one stage: what the README
here names was printed by this."""

import sys
from collections.abc import Iterator

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.utils import see_memory_usage
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


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        size = CONFIG["train_micro_batch_size_per_gpu"], WIDTH
        yield torch.randn(size), torch.randn(size)


def train(piped: bool) -> None:
    """Train for a few steps, with gloo on the CPU."""
    torch.set_num_threads(1)
    set_log_level_from_string("info")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # one process needs no C++ build
    deepspeed.init_distributed("gloo")
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    loss = torch.nn.functional.mse_loss
    model = PipelineModule(layers, 1, loss_fn=loss) if piped else torch.nn.Sequential(*layers)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    data = batches()
    for _ in range(STEPS if piped else STEPS * CONFIG["gradient_accumulation_steps"]):
        if piped:
            engine.train_batch(data)
            continue
        given, wanted = next(data)
        engine.backward(loss(engine(given), wanted))
        engine.step()
    see_memory_usage("after training", force=True)


if __name__ == "__main__":
    train("pipeline" in sys.argv)
