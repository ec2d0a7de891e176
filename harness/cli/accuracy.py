"""`harness accuracy`: predicted and measured over many runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from advisor.base.errors import install_hint
from advisor.report.command_help import read_page
from advisor.report.text import on_screen
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.judge.accuracy_rows import Half, SettingRow, looked_at, setting_rows
from harness.judge.repredict import predict_again
from harness.judge.results import load_results
from harness.report.accuracy_page import accuracy_report, csv_text
from harness.report.document import Picture, markdown, terminal_page
from harness.trial.files import write_atomic
from harness.trial.result import TrialResult

COMMAND: Final = read_page(__file__, "accuracy", {"--half": {"choices": tuple(Half)}})


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    arguments = Parser("accuracy", COMMAND, folder="+").read(argv)
    results = load_results([run for folder in arguments.folder for run in runs(folder)]).results
    if arguments.predict:
        again = (predict_again(result, arguments.config_dir) for result in results)
        pairs = zip(results, again, strict=True)
        results = tuple(one if trial is None else replace(one, trial=trial) for one, trial in pairs)
    found = setting_rows(results, frozenset().union(*map(looked_at, arguments.folder)))
    if arguments.half:
        found = tuple(row for row in found if row.cell.half == arguments.half)
    out = arguments.out or arguments.folder[0]
    out.mkdir(parents=True, exist_ok=True)
    report = accuracy_report(found, _subtitle(results, found), _pictures(found, out))
    write_atomic(out / "accuracy.csv", csv_text(found))
    write_atomic(out / "accuracy.md", markdown(report))
    print(on_screen(terminal_page(report)), end="")
    say(f"wrote {out / 'accuracy.md'} and .csv", "accuracy")
    return 0


def runs(folder: Path) -> list[Path]:
    """Folders of runs below `folder`, none of what was set aside; itself where none has a plan."""
    return sorted({path.parent for path in folder.rglob("plan.json")}) or [folder]


def _subtitle(results: Sequence[TrialResult], found: Sequence[SettingRow]) -> str:
    """Where it was measured, and with which calibrations it was predicted."""
    places = {name for result in results for name in result.gpu_names}
    software = [one.environment.get("software") or {} for one in results if one.environment]
    versions = {str(known.get("torch")) for known in software}
    names = sorted({row.calibration for row in found} - {"none"})
    where = ", ".join(sorted(places)) or "CPU"
    known = f"; calibration {', '.join(names)}" if names else ""
    return f"{where}, torch {', '.join(sorted(versions))}{known}"


def _pictures(found: Sequence[SettingRow], out: Path) -> tuple[Picture, ...]:
    from harness.report.predicted_figure import draw_accuracy

    try:
        return draw_accuracy(found, out / "figures")
    except ImportError:
        say(f"no figure: matplotlib is not installed; {install_hint('report')}", "accuracy")
        return ()
