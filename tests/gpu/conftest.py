"""What holds for every test on a GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_ALONE = Path(__file__).with_name("test_campaign.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The campaign first: it must be alone on the GPU, and from the first kernel of this process on
    the driver lists it as another one."""
    items.sort(key=lambda item: item.path != _ALONE)


@pytest.fixture(autouse=True)
def _gives_memory_back() -> Iterator[None]:
    """What a test has freed is there for the processes that a later one starts."""
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
