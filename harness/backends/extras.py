"""Which extra of this package installs what a backend needs."""

from typing import Final

_EXTRAS: Final = {"transformer_engine": "gpu", "megatron": "megatron"}


def extra_of(module: str) -> str:
    """The extra with the package that `module` is imported from."""
    return _EXTRAS.get(module, "harness")
