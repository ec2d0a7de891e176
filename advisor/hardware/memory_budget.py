"""What of a GPU's memory a rank may be given."""

from advisor.base.errors import UserError
from advisor.base.units import human_bytes
from advisor.hardware.gpu import Gpu


def check_budget(budget_bytes: int | None, gpu: Gpu, field: str) -> None:
    """UserError, under `field`, where the budget is more than the whole card."""
    if budget_bytes is not None and budget_bytes > gpu.memory_bytes:
        card = human_bytes(gpu.memory_bytes)
        raise UserError(
            field,
            human_bytes(budget_bytes),
            f"is more than the {card} of {gpu.name}",
            "leave it out for the whole card, or name a GPU that has more in --gpus",
        )
