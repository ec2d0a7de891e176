"""What a log tells around a failure: its traceback, and the steps before and after it."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, convert, field

from advisor.base.configuration import load_yaml, packaged_configs
from advisor.base.lines import clean_line

MEMORY: Final = (b"ut of memory", b"OutOfMemoryError")
HEAD_BYTES: Final = 4 << 20  # where a log names its model, layout, versions
BEFORE_LINES: Final = 4000  # all ranks' lines before a failure that are searched for its traceback
WORLD: Final = re.compile(r"\b(?:world[_ ]size|num_processes|WORLD_SIZE)[ .:='\"]{1,80}(\d{1,6})\b")
_APART: Final = 40  # lines of one rank between two frames of a traceback, at most
_MARKED: Final = re.compile(r"❱|^-+> ?\d+ ")  # the source line, as Rich and notebooks mark it
_WORKER: Final = re.compile(r"^\([\w.:<>-]+ pid=\d+[^)]*\) *")  # Ray's prefix
_FILE: Final = packaged_configs() / "failures" / "log_lines.yaml"
_LINES: Final = convert(load_yaml(_FILE).values, dict[str, list[str]])
_FRAME: Final = re.compile("|".join(_LINES["frames"]))
_PROGRESS: Final = re.compile("|".join(_LINES["steps"]).encode())
_ENDS: Final = re.compile("|".join(_LINES["ends"]).encode())


class Around(Struct):
    """Of one line: the lines above it; the last step before, and how many have passed."""

    above: Sequence[bytes] = ()
    step: int | None = None
    passed: int = 0


class Story(Struct):
    """What came before, block by block; lines are looked at where memory ran out or may have. head:
    where a log names its job. passed: how often a later step came, two at the end of training."""

    head: bytearray = field(default_factory=bytearray)
    step: int | None = None
    passed: int = 0
    last: dict[int, float] = field(default_factory=dict)
    block: bytes = b""
    watches: bool = False
    lines: list[bytes] = field(default_factory=list)
    steps: list[tuple[int | None, int]] = field(default_factory=list)
    begins: int = 0

    def take(self, block: bytes, *, waits: bool) -> None:
        """The next block; `waits`: for steps after a failure."""
        self.head += block[: HEAD_BYTES - len(self.head)]
        before, self.block = self.block, block
        watched, self.watches = self.watches, waits or any(one in block for one in MEMORY)
        if self.watches:
            above = before.removesuffix(b"\n").split(b"\n")[-BEFORE_LINES:]
            self.lines, self.begins = above + block.split(b"\n"), len(above)
            known = [(self.step, self.passed)] * len(above) if watched else []
            self.steps = known + [self._read(line) for line in self.lines[len(known) :]]

    def around(self, index: int) -> Around:
        """What is around a line of the block; empty where it is not looked at."""
        at = self.begins + index
        if not self.watches or not any(one in self.lines[at] for one in MEMORY):
            return Around()
        return Around(self.lines[max(0, at - BEFORE_LINES) : at], *self.steps[at])

    def _read(self, line: bytes) -> tuple[int | None, int]:
        """Enter a line, which may hold many steps of a progress bar."""
        for match in _PROGRESS.finditer(line):
            kind = match.lastindex or 0
            number = float(match[kind])
            self.passed += number > self.last.get(kind, -1)
            self.last[kind] = number
            self.step = self.step if match.lastgroup else int(number)
        self.passed += 2 if _ENDS.search(line) else 0
        return self.step, self.passed


def frames(before: Sequence[bytes], line: bytes) -> tuple[str, ...]:
    """The traceback that ends in `line`, innermost frame first, as ``path in function: source``;
    `before`: the lines above it, of all ranks and workers."""
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
        elif "Traceback (most recent call last)" in text or apart == _APART:
            break
        else:
            source, apart = source if _MARKED.search(source) else text, apart + 1
    return tuple(found)


def _speaker(line: bytes) -> tuple[int | None, str]:
    """Rank, and the worker that Ray names."""
    rank, text = clean_line(line[:200])
    worker = _WORKER.match(text)
    return rank, worker[0] if worker else ""
