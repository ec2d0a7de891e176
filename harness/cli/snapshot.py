"""`harness snapshot`: a memory snapshot of torch, measured next to predicted."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from advisor.base.errors import UserError
from advisor.base.units import human_bytes, signed_percent, unit_of
from advisor.report.command_help import read_page
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.logs.recorded_memory import Recording, read_recording, recording_names

COMMAND: Final = read_page(__file__, "snapshot")


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    given = Parser("snapshot", COMMAND, snapshot="+").read(argv)
    if len(given.snapshot) > 2:
        raise UserError("files", len(given.snapshot), "must be one snapshot, or two to compare")
    if given.plot:
        from advisor.report.figures.plot import check_figure

        check_figure(given.plot)
    found = _recordings(given)
    for line in lines(found):
        print(line)
    if given.plot:
        from harness.report.snapshot_figure import draw_recordings

        draw_recordings(found, given.plot)
        say(f"wrote {given.plot}", "snapshot")
    return 0


def _recordings(given: Namespace) -> list[Recording]:
    """One a file, by --device and --stage; UserError for --stage without a predicted one."""
    within = _within(given.start, given.end)
    first, *others = given.snapshot
    if others or given.stage is None:
        found = [read_recording(first, given.device, within)]
        return found + [read_recording(path, given.stage, flag="--stage") for path in others]
    if given.device is not None:
        raise UserError("--device", given.device, "cannot be combined with --stage for one file")
    alone = read_recording(first, given.stage, within, "--stage")
    if not alone.predicted:
        raise UserError("--stage", given.stage, "needs a predicted snapshot", "use --device")
    return [alone]


def _within(start: float | None, end: float | None) -> tuple[float, float] | None:
    if start is None and end is None:
        return None
    found = (start or 0.0, float("inf") if end is None else end)
    if not 0 <= found[0] < found[1]:
        raise UserError("--start", start, "must be at least 0 and below --end")
    return found


def lines(found: Sequence[Recording]) -> Iterator[str]:
    """What is printed: a line a recording, the difference, and what is alive at the peaks."""
    names = recording_names(found)
    for name, one in zip(names, found, strict=True):
        where = f"{'stage' if one.predicted else 'device'} {one.device}"
        when = "" if one.peak_seconds is None else f" at {one.peak_seconds:.3f} s"
        yield f"{name}: {one.path}, {where}, {len(one.num_bytes):,} events"
        yield f"  peak {_exact(one.peak_bytes)}{when}"
        yield from _remarks(one)
    if len(found) == 2:
        first, second = (one.peak_bytes for one in found)
        share = f" ({signed_percent(second / first - 1)})" if first else ""
        yield f"difference, {names[1]} minus {names[0]}: {second - first:+,} bytes{share}"
    yield from _kinds(found, names)


def _remarks(one: Recording) -> Iterator[str]:
    """What the allocator took, and what the recording lacks."""
    if one.reserved_bytes is not None:
        yield f"  peak reserved memory {_exact(one.reserved_bytes)}"
    if one.unseen_bytes:
        unseen = _exact(one.unseen_bytes)
        yield f"  {unseen} were freed without an event: the peak may be too high by as much"
    if one.may_lack_events:
        count = f"{one.num_events:,}"
        yield f"  the file has {count} entries: if max_entries was {count}, the oldest are missing"


def _exact(num_bytes: int) -> str:
    return f"{human_bytes(num_bytes)} ({num_bytes:,} bytes)"


def _kinds(found: Sequence[Recording], names: Sequence[str]) -> Iterator[str]:
    """A table of what is alive at the peaks."""
    unit, unit_name = unit_of(one.peak_bytes for one in found)
    head = f"alive at the peak, {unit_name}"
    yield f"{head:<30}" + "".join(f"{name:>14}" for name in names)
    for kind in dict.fromkeys(kind for one in found for kind in one.kinds):
        cells = (f"{one.kinds[kind] / unit:.2f}" if kind in one.kinds else "" for one in found)
        yield f"  {kind:<28}" + "".join(f"{cell:>14}" for cell in cells)
