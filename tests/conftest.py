"""What holds for every test."""

import gc
import os
from collections.abc import Iterator

import pytest

_AT_START = dict(os.environ)


def pytest_collection_finish() -> None:
    """What the imports have made stays: no collection, and no count of all tensors, looks through
    these million objects again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Megatron Core sets variables of Transformer Engine in its process: not for other tests."""
    yield
    for name in os.environ.keys() - _AT_START.keys():
        if name.startswith("NVTE_"):
            del os.environ[name]
