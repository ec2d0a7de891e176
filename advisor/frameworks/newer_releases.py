"""Releases that came after those that are known: answered as the newest known, which is said."""

import re
from collections.abc import Iterable

_NUMBERS = re.compile(r"[a-z_-]*v?(\d+(?:\.\d+)*)")


def _numbers(text: str) -> tuple[int, ...]:
    found = _NUMBERS.match(text.strip().lower())
    return tuple(map(int, found.group(1).split("."))) if found else ()


def is_newer(text: str, known: Iterable[str]) -> bool:
    """Whether a release has a higher number than all that are `known`, as far as these go: ``0.20``
    and ``0.20.1`` after ``0.19``, and ``2.5`` is a ``2``."""
    newest = max(map(_numbers, known))
    return _numbers(text)[: len(newest)] > newest


def as_newest(name: str, asked: str, release: str) -> str:
    """The line that says so; empty where `asked` is what `release` means, or nothing."""
    means = not is_newer(asked, (release,)) if _numbers(release) else asked.strip() == release
    return "" if means or not asked else f"{name} {asked} is not known and taken as {release}"


def with_newest(label: str, name: str, asked: str, release: str) -> str:
    """A label of what is checked, with that line."""
    return ", ".join(filter(None, (label, as_newest(name, asked, release))))
