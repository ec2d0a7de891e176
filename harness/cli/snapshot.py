"""`harness snapshot`: a memory snapshot of torch, measured beside predicted."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from advisor.base.errors import UserError
from advisor.base.units import human_bytes, signed_percent, unit_of
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.logs.snapshots.recorded_memory import Recording, read_recording, words

HELP: Final = """\
harness snapshot MEASURED.pickle [PREDICTED.pickle] [flags]

Reads memory snapshots of torch, as torch.cuda.memory._dump_snapshot and advise
--memory-snapshot write them: the peak of live bytes, when it is, and of what;
of two snapshots the difference.

  advise --model llama3_8b --gpus 8xH100 --memory-snapshot predicted.pickle
  harness snapshot rank0.pickle predicted.pickle --plot both.svg

A file is read as plain data: one that holds a class is refused, and nothing in
it is run. Live bytes are those asked for: the allocator counts each block
rounded up to 512 bytes.

Flags
  --plot FILE           both against time on one axis: .svg, .png or .pdf
  --start SECONDS       where in MEASURED the step begins; default: first event
  --end SECONDS         where it ends; default: last event
  --device N            of MEASURED; default: the one with the highest peak
  --stage N             of PREDICTED; default: the one with the highest peak
  --help

Exit codes: 0 done, 2 the request is wrong or a file is no snapshot (one line
says why).
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    given = parser().read(argv)
    if len(given.files) > 2:
        raise UserError("files", len(given.files), "must be one snapshot, or two to compare")
    if given.plot:
        from advisor.report.figures.plot import check_figure

        check_figure(given.plot)
    within = _within(given.start, given.end)
    found = [read_recording(given.files[0], given.device, within)]
    found += [read_recording(path, given.stage) for path in given.files[1:]]
    for line in lines(found):
        print(line)
    if given.plot:
        from harness.report.snapshot_figure import draw_recordings

        draw_recordings(found, given.plot)
        say(f"wrote {given.plot}", "snapshot")
    return 0


def parser() -> Parser:
    """The command line."""
    made = Parser("harness snapshot", HELP)
    made.add_argument("files", nargs="+", type=Path)
    made.add_argument("--plot", type=Path)
    for name, kind in (("--start", float), ("--end", float), ("--device", int), ("--stage", int)):
        made.add_argument(name, type=kind)
    return made


def _within(start: float | None, end: float | None) -> tuple[float, float] | None:
    if start is None and end is None:
        return None
    found = (start or 0.0, float("inf") if end is None else end)
    if not 0 <= found[0] < found[1]:
        raise UserError("--start", start, "must be at least 0 and below --end")
    return found


def lines(found: Sequence[Recording]) -> Iterator[str]:
    """What is printed: a line a recording, the difference, and what is alive at the peaks."""
    names = words(found)
    for name, one in zip(names, found, strict=True):
        where = f"{'stage' if one.predicted else 'device'} {one.device}"
        when = "" if one.peak_seconds is None else f" at {one.peak_seconds:.3f} s"
        yield f"{name}: {one.path}, {where}, {len(one.num_bytes):,} events"
        yield f"  peak {human_bytes(one.peak_bytes)} ({one.peak_bytes:,} bytes){when}"
    if len(found) == 2:
        first, second = (one.peak_bytes for one in found)
        share = f" ({signed_percent(second / first - 1)})" if first else ""
        yield f"difference, {names[1]} less {names[0]}: {second - first:+,} bytes{share}"
    yield from _kinds(found, names)


def _kinds(found: Sequence[Recording], names: Sequence[str]) -> Iterator[str]:
    """A table of what is alive at the peaks."""
    unit, unit_name = unit_of(one.peak_bytes for one in found)
    head = f"alive at the peak, {unit_name}"
    yield f"{head:<30}" + "".join(f"{name:>14}" for name in names)
    for kind in dict.fromkeys(kind for one in found for kind in one.kinds):
        cells = (f"{one.kinds[kind] / unit:.2f}" if kind in one.kinds else "" for one in found)
        yield f"  {kind:<28}" + "".join(f"{cell:>14}" for cell in cells)
