"""`harness ingest`: results out of the logs of training runs."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from advisor.base.fields import key_of, split_key_values
from advisor.base.units import counted, gib
from advisor.report.blocks import Fitted, hanging
from advisor.report.command_help import read_page
from advisor.report.text import on_screen
from harness.api.ingesting import AUTO, AskedLogs, log_framework, read_logs
from harness.cli.flags import Parser
from harness.execution.progress import say
from harness.execution.runner import FAILED
from harness.logs.ingestion import Ingested, write
from harness.trial.result import TrialResult, TrialStatus, reason

_say: Final = partial(say, command="ingest")
COMMAND: Final = read_page(__file__, "ingest")
_OVERRIDE: Final = re.compile(r"[+~]?[A-Za-z_][\w.]*=.*", re.DOTALL)
_SHOWN: Final = 3
NO_VERDICT: Final = 3
RUN_FAILED: Final = 4


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    asked, dry_run = parse(argv)
    found, folder = read_logs(asked)
    for one in found:
        print(result_line(one), end="")
        for text in one.parsed.odd_files:
            _say(f"{one.source.name}: {text}")
    if not dry_run:
        write(found, folder)
        _say(f"results in {folder.path}")
    return exit_code([one.result for one in found])


def parse(argv: Sequence[str]) -> tuple[AskedLogs, bool]:
    """Flags, logs and KEY=VALUE, and whether nothing is written; UserError for an unknown flag."""
    given = Parser("ingest", COMMAND, str, words="*").read(argv)
    pairs = [word for word in given.words if _OVERRIDE.fullmatch(word) and not Path(word).exists()]
    own = split_key_values(pairs)
    asked = AskedLogs(
        logs=tuple(word for word in given.words if word not in pairs),
        overrides=tuple(word for word in pairs if key_of(word) not in ("framework", "like")),
        framework=log_framework(own.get("framework", AUTO)),
        like=Path(own["like"]) if "like" in own else None,
        one_run=given.one_run,
        accept_incomplete=given.accept_incomplete,
        config_dir=given.config_dir,
    )
    return asked, given.dry_run


def exit_code(results: Sequence[TrialResult]) -> int:
    """4: a run failed; 3: one gave nothing to go by; else 0."""
    statuses = {result.status for result in results}
    if statuses & ({*FAILED, TrialStatus.OOM} - {TrialStatus.NO_DATA}):
        return RUN_FAILED
    return 0 if statuses == {TrialStatus.OK} else NO_VERDICT


def result_line(one: Ingested) -> str:
    """What a log gave, on as few lines as the page allows."""
    result, paths = one.result, one.source.paths
    name = paths[0] if len(paths) == 1 else one.source.name
    words = [f"{result.status:<10}", f"{one.parsed.framework or 'unknown':<15}", str(name)]
    if result.times is None:
        words += [reason(result.evidence)] if result.evidence else []
    else:
        fatal = [f"{concern.name}: {concern.seen}" for concern in result.fatal]
        more = [f"and {len(fatal) - _SHOWN} more"] if len(fatal) > _SHOWN else []
        words += _figures(result)
        words += [f"({'; '.join([*fatal[:_SHOWN], *more])})"] if fatal else []
    return on_screen(Fitted(partial(hanging, "  ".join(words), columns=12)))


def _figures(result: TrialResult) -> list[str]:
    """Medians over the steps, the largest peaks of all ranks, the last loss."""
    assert result.times is not None
    count, dropped = len(result.times.seconds), len(result.times.warmup_seconds)
    found = [f"{counted(count, 'step')} after {dropped} of warm-up"]
    found.append(f"{median(result.times.seconds) * 1e3:.1f} ms")
    rates = result.reported
    if rates and rates.tflops_per_gpu:
        found.append(f"{median(rates.tflops_per_gpu):.1f} TFLOP/s/GPU")
    if rates and rates.tokens_per_second_per_gpu:
        found.append(f"{median(rates.tokens_per_second_per_gpu):.0f} tokens/s/GPU")
    for what in ("allocated", "reserved"):
        peaks = [size for peak in result.memory if (size := getattr(peak, what)) is not None]
        found += [f"{gib(max(peaks))} GiB {what}"] if peaks else []
    return [*found, f"loss {result.loss[-1]:.4g}"] if result.loss else found
