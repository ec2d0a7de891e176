"""What a log tells around a failure: its traceback, and the steps before and after it."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, convert, field

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.base.lines import clean_line

HEAD_BYTES: Final = 4 << 20  # where a log names its model, layout, versions
BEFORE_LINES: Final = 4000  # all ranks' lines before a failure that are searched for its traceback
WORLD: Final = re.compile(r"\b(?:world[_ ]size|num_processes|WORLD_SIZE)[ .:='\"]{1,80}(\d{1,6})\b")
APART: Final = 40
_SHORT: Final = 1000  # bytes
FOLDED: Final = bytes.maketrans(b"023456789", b"111111111")
_MARKED: Final = re.compile(r"❱|^-+> ?\d+ ")  # the source line, as Rich and notebooks mark it
_WORKER: Final = re.compile(r"^\([\w.:<>-]+ pid=\d+[^)]*\) *")  # Ray's prefix
_FILE: Final = packaged_configs() / "failures" / "log_lines.yaml"
_LINES: Final = convert(load_yaml(_FILE).values, dict[str, list[str]])
_FRAME: Final = re.compile("|".join(_LINES["frames"]))
_PROGRESS: Final = [re.compile(pattern.encode()) for pattern in _LINES["steps"]]
_ENDS: Final = re.compile("|".join(_LINES["ends"]).encode())


class Around(Struct):
    """Of one line: the lines above it; the last step before, and how many have passed."""

    above: Sequence[bytes] = ()
    step: int | None = None
    passed: int = 0


class Story(Struct):
    """What came before, block by block; lines are looked at where a failure may be. head: where a
    log names its job. passed: how often a later step came, two at the end of training."""

    head: bytearray = field(default_factory=bytearray)
    step: int | None = None
    passed: int = 0
    last: dict[int, float] = field(default_factory=dict)
    block: bytes = b""
    watches: bool = False
    lines: list[bytes] = field(default_factory=list)
    steps: list[tuple[int | None, int]] = field(default_factory=list)
    begins: int = 0

    def take(self, block: bytes, *, watches: bool) -> None:
        """The next block; `watches`: for a failure, or steps after one."""
        self.head += block[: HEAD_BYTES - len(self.head)]
        before, self.block = self.block, block
        watched, self.watches = self.watches, watches
        if watches:
            above = before.removesuffix(b"\n").split(b"\n")[-BEFORE_LINES:]
            self.lines, self.begins = above + block.split(b"\n"), len(above)
            known = [(self.step, self.passed)] * len(above) if watched else []
            self.steps = known + [self._read(line) for line in self.lines[len(known) :]]

    def around(self, index: int) -> Around:
        """What is around a line of a block that is watched."""
        at = self.begins + index
        return Around(self.lines[max(0, at - BEFORE_LINES) : at], *self.steps[at])

    def _read(self, line: bytes) -> tuple[int | None, int]:
        """Enter a line, which may hold many steps of a progress bar."""
        patterns_in = _patterns_in if len(line) < _SHORT else _patterns_in.__wrapped__
        kinds, ends = patterns_in(line.translate(FOLDED))
        for kind in kinds:
            for match in _PROGRESS[kind].finditer(line):
                number = float(match[1])
                self.passed += number > self.last.get(kind, -1)
                self.last[kind] = number
                self.step = self.step if match.lastgroup else int(number)
        self.passed += 2 * ends
        return self.step, self.passed


@lru_cache(1 << 12)
def _patterns_in(alike: bytes) -> tuple[tuple[int, ...], bool]:
    """The patterns of steps that a line has, whatever its numbers are; whether it tells the end."""
    kinds = (kind for kind, pattern in enumerate(_PROGRESS) if pattern.search(alike))
    return tuple(kinds), bool(_ENDS.search(alike))


def frames(before: Sequence[bytes], line: bytes, most: int = APART) -> tuple[str, ...]:
    """The traceback that ends in `line`, innermost frame first, as ``path in function: source``;
    `before`: the lines above it, of all ranks and workers; most: lines of one rank between two
    frames. None of what Python ignored."""
    if b'File \\"' in line:  # a whole traceback in one line, as JSON logs hold it
        before, line = line.replace(b'\\"', b'"').split(b"\\n"), b""
    own, found, source, apart = _speaker(line), list[str](), "", 0
    for other in reversed(before):
        if _speaker(other) != own:
            continue
        text = _WORKER.sub("", clean_line(other)[1])
        if match := _FRAME.search(text):
            path, function = filter(None, match.groups())
            found.append(f"{path} in {function}: {_MARKED.sub('', source)}")
            source, apart = "", 0
        elif text.startswith("Exception ignored in"):
            return ()
        elif "Traceback (most recent call last)" in source or apart == most:
            break
        else:
            source, apart = source if _MARKED.search(source) else text, apart + 1
    return tuple(found)


def _speaker(line: bytes) -> tuple[int | None, str]:
    """Rank, and the worker that Ray names."""
    rank, text = clean_line(line[:200])
    worker = _WORKER.match(text)
    return rank, worker[0] if worker else ""
