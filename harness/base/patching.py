"""Attributes of foreign modules and classes that are another for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: object, *, may_lack: bool = False) -> Iterator[None]:
    """Inside, `owner.name` is `value`; behind it again what it was: own, inherited or absent.

    AttributeError where `owner` has no such attribute, unless it may lack it: a release that names
    it otherwise must not go unnoticed.
    """
    if not may_lack:
        getattr(owner, name)
    own = name in vars(owner)
    before = vars(owner).get(name)  # not getattr: a static method stays one
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
