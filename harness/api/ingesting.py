"""`harness.ingest`: results out of the logs of training runs."""

import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError, show
from advisor.base.fields import convert, key_of
from harness.api.overrides import Overrides, hydra_overrides, texts
from harness.api.running import run_folder
from harness.judge.results import load_results
from harness.logs.ingestion import Ingested, LogIdentity, Source, write
from harness.logs.ingestion import ingest as ingested
from harness.logs.records import LogFramework
from harness.planner.run_request import compose
from harness.trial.store import RunFolder
from harness.trial.trial import Device

AUTO: Final = "auto"
_WORKLOAD: Final = ("model", "layout", "job", "recompute", "backend", "command", "launcher")
_STEPS: Final = 200
_SUFFIXES: Final = (".log", ".out", ".err", ".txt", ".gz", "")


class AskedLogs(Struct, frozen=True, kw_only=True):
    """Which logs are to be read, and what is known of their workload."""

    logs: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    framework: LogFramework | None = None
    like: Path | None = None
    one_run: bool = False
    accept_incomplete: bool = False
    config_dir: Path | None = None


def ingest(
    logs: str | Path | Sequence[str | Path],
    overrides: Overrides = (),
    *,
    framework: str = AUTO,
    like: str | Path | None = None,
    one_run: bool = False,
    accept_incomplete: bool = False,
    dry_run: bool = False,
    config_dir: str | Path | None = None,
    **keywords: object,
) -> tuple[Ingested, ...]:
    """Read a result from every log into ``runs``, as `harness ingest` does.

    Args:
        logs: files, patterns, or folders of one run's ranks.
        overrides: ``["experiment=NAME", …]`` or a mapping, as for `harness.run`.
        framework: the framework that wrote the logs; ``auto`` tells it by their lines.
        like: a result.json of the same workload, instead of ``experiment``.
        one_run: all logs are of one run.
        accept_incomplete: accept a log that was cut short; its steps are used.
        dry_run: write nothing.
        config_dir: searched before ./configs and the packaged configuration.
        keywords: the same keys, e.g. ``experiment="llama3_8b_8xh100"``, ``device="cpu"``,
            ``name="mine"``.

    Times are seconds, sizes bytes. UserError where a file cannot be read or the request is wrong.
    """
    listed = [logs] if isinstance(logs, str | Path) else logs
    asked = AskedLogs(
        logs=texts([str(log) for log in listed], "logs"),
        overrides=hydra_overrides(overrides, keywords),
        framework=log_framework(framework),
        like=None if like is None else Path(like),
        one_run=one_run,
        accept_incomplete=accept_incomplete,
        config_dir=None if config_dir is None else Path(config_dir),
    )
    found, folder = read_logs(asked)
    if not dry_run:
        write(found, folder)
    return found


def read_logs(asked: AskedLogs) -> tuple[tuple[Ingested, ...], RunFolder]:
    """A result for every log, and the folder where they are to go."""
    sources = find_sources(asked.logs, asked.one_run)
    identity = _identity(asked)
    config = identity.config
    more = f"-and-{len(sources) - 1}-more" if len(sources) > 1 else ""
    folder = run_folder(config.runs, config.name or f"ingested-{sources[0].name}{more}")
    return ingested(sources, asked.framework, identity, asked.accept_incomplete), folder


def log_framework(name: str) -> LogFramework | None:
    """Whose log a name means; None for ``auto``."""
    return None if name == AUTO else convert(name, LogFramework, "", "framework")


def find_sources(logs: Sequence[str], one_run: bool = False) -> tuple[Source, ...]:
    """The runs that the words name, each with its files; UserError where one names none."""
    found = [source for word in logs for source in _sources(word)]
    if not found:
        raise UserError("LOG", "(none)", "must name a log", "harness ingest train.log")
    if one_run:
        paths = tuple(path for source in found for path in source.paths)
        found = [Source(name=found[0].name, paths=paths)]
    taken: dict[str, int] = {}
    unique = []
    for source in found:  # logs of one name in several folders
        taken[source.name] = count = taken.get(source.name, 0) + 1
        unique.append(source if count == 1 else replace(source, name=f"{source.name}-{count}"))
    return tuple(unique)


def _sources(word: str) -> list[Source]:
    paths = [Path(word)] if Path(word).exists() else [Path(p) for p in sorted(glob(word))]
    if not paths:
        raise UserError("LOG", show(word), "matches no file")
    return [Source(name=_stem(path), paths=_files(path)) for path in paths]


def _files(path: Path) -> tuple[Path, ...]:
    """The file, or the logs anywhere in a folder."""
    if not path.is_dir():
        return (path,)
    try:
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    except OSError as error:
        relation = f"cannot be searched: {error.filename}: {error.strerror}"
        raise UserError("LOG", show(str(path)), relation, "name a folder of logs") from None
    found = tuple(file for file in files if file.suffix in _SUFFIXES)
    if not found:
        raise UserError("LOG", show(str(path)), "is a folder without logs")
    return found


def _stem(path: Path) -> str:
    """``train`` of ``logs/train.log.gz``; of a folder its own name."""
    name = path.resolve().name
    return re.sub(r"(\.(log|out|err|txt|gz))+$", "", name) or name


def _identity(asked: AskedLogs) -> LogIdentity:
    given = {key_of(override.lstrip("+")) for override in asked.overrides}
    _check_workload(given, asked)
    steps = () if "measure.steps" in given else (f"measure.steps={_STEPS}",)
    config = compose((*asked.overrides, *steps), asked.config_dir)
    preset = "experiment" in given
    if asked.like is not None and preset:
        relation = "cannot be combined with experiment=: both state the workload"
        raise UserError("like", str(asked.like), relation, "give only one of them")
    like = load_results([asked.like]).results[0] if asked.like else None
    device = Device.CUDA if config.device == AUTO else convert(config.device, Device, "", "device")
    return LogIdentity(config=config, preset=preset, like=like, device=device)


def _check_workload(given: set[str], asked: AskedLogs) -> None:
    """UserError for keys that would say nothing: they change the workload of an experiment."""
    if "experiment" in given:
        return
    how = "cannot be combined with like=RESULT" if asked.like else "needs experiment=NAME"
    relation = f"{how}, which states the workload"
    for key in sorted(given):
        if key.partition(".")[0] in _WORKLOAD:
            raise UserError(key, None, relation)
