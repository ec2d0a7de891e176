"""`harness ingest`: results out of the logs of training runs."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from statistics import median
from typing import Final

from advisor.base.errors import UserError
from advisor.base.fields import convert, show
from advisor.base.units import gib, nearest_names
from harness.cli.run import run_folder
from harness.judge.results import load_results
from harness.logs.ingestion import Identity, Ingested, Source, ingest, write
from harness.logs.records import LogFramework
from harness.planner.run_request import compose
from harness.run.progress import reason
from harness.run.runner import FAILED
from harness.trial.result import TrialResult, TrialStatus
from harness.trial.trial import Device

HELP: Final = """\
harness ingest [flags] LOG... [KEY=VALUE]...

Reads step times, TFLOP/s, tokens/s, losses and peak memory out of the logs of Megatron-LM, Megatron
Bridge, NeMo, torchtitan, DeepSpeed and Hugging Face's Trainer, and keeps them as results that
compare and golden read, and report where experiment= or like= says the workload. Warm-up is dropped
by the same rule as everywhere.

  harness ingest train.log                             what the log itself tells of its workload
  harness ingest 'logs/*.log.gz' experiment=llama3_8b_8xh100 'recompute.settings=[selective:mlp]'
  harness ingest logs/job_17/ like=runs/NAME/trials/TRIAL/result.json

  LOG                 a file, plain or gzip; a pattern; or a folder: the files of one run's ranks
  framework=NAME      whose log it is; auto (default): by its lines
  experiment=NAME     the job preset that ran; recompute.settings=[SPEC], model.*, layout.*, job.*
                      and gpus=COUNTxTYPE as for harness run. Megatron's logs tell their setting
  like=RESULT         a result.json of the same workload, instead
  device=cuda|cpu     cuda by default
  measure.steps=200   steps after warm-up that count; measure.min_warmup_steps and others as for run
  runs=FOLDER name=NAME   where results go; default runs/ingested-LOG

Flags
  --one-run             all LOGs are files of one run
  --accept-incomplete   a log that ends before its run did is good for the steps it holds
  --dry-run             print what the logs say, write nothing
  --config-dir DIR      searched before ./configs and the packaged configuration
  --help

Prints one line for each run. Exit codes: 0 all are good, 2 the request is wrong (one line says
why), 3 some hold no measurement, or none to be trusted (cut short, no known lines, scattered), 4 a
run failed.
"""
_OVERRIDE: Final = re.compile(r"[+~]?[A-Za-z_][\w.]*=.*", re.DOTALL)
_FLAGS: Final = ("--one-run", "--accept-incomplete", "--dry-run", "--config-dir", "--help")
_AUTO: Final = "auto"
_WORKLOAD: Final = ("model", "layout", "job", "recompute", "backend", "command", "launcher")
_STEPS: Final = 200
_SHOWN: Final = 3
_SUFFIXES: Final = (".log", ".out", ".err", ".txt", ".gz", "")
NO_VERDICT: Final = 3
RUN_FAILED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    logs: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    framework: LogFramework | None = None
    like: Path | None = None
    one_run: bool = False
    accept_incomplete: bool = False
    dry_run: bool = False
    config_dir: Path | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; UserError where the request is wrong."""
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return 0
    options = parse(argv)
    sources = find_sources(options.logs, options.one_run)
    identity = _identity(options)
    config = identity.config
    folder = run_folder(config.runs, config.name or _default_name(sources))
    found = ingest(sources, options.framework, identity, options.accept_incomplete)
    for one in found:
        print(line(one))
        for text in one.parsed.odd_files:
            _say(f"{one.source.name}: {text}")
    if not options.dry_run:
        write(found, folder)
        _say(f"results in {folder.path}")
    return exit_code([one.result for one in found])


def parse(argv: Sequence[str]) -> Options:
    """Flags, logs and KEY=VALUE; UserError for a flag that is not known."""
    rest, logs, overrides = list(argv), [], []
    flags: dict[str, bool] = {}
    own: dict[str, str] = {}
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if name == "--config-dir":
            if not has_value and not rest:
                raise UserError(name, "(none)", "needs a folder")
            own[name] = value if has_value else rest.pop(0)
        elif word in _FLAGS:
            flags[word.removeprefix("--").replace("-", "_")] = True
        elif word.startswith("-"):
            raise UserError(show(word), "(given)", "is not a flag", nearest_names(word, _FLAGS))
        elif name in ("framework", "like"):
            own[name] = value
        elif _OVERRIDE.fullmatch(word) and not Path(word).exists():
            overrides.append(word)
        else:
            logs.append(word)
    framework = own.get("framework", _AUTO)
    return Options(
        logs=tuple(logs),
        overrides=tuple(overrides),
        framework=None if framework == _AUTO else convert(framework, LogFramework, "", "framework"),
        like=Path(own["like"]) if "like" in own else None,
        config_dir=Path(own["--config-dir"]) if "--config-dir" in own else None,
        **flags,
    )


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
        raise UserError("LOG", show(word), "names no file")
    return [Source(name=_stem(path), paths=_files(path)) for path in paths]


def _files(path: Path) -> tuple[Path, ...]:
    """The file, or the logs anywhere in a folder."""
    if not path.is_dir():
        return (path,)
    try:
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    except OSError as error:
        raise UserError(
            "LOG",
            show(str(path)),
            f"cannot be searched: {error.filename}: {error.strerror}",
            "name a folder of logs",
        ) from None
    found = tuple(file for file in files if file.suffix in _SUFFIXES)
    if not found:
        raise UserError("LOG", show(str(path)), "is a folder without logs")
    return found


def _stem(path: Path) -> str:
    """``train`` of ``logs/train.log.gz``; of a folder its own name."""
    name = path.resolve().name
    return re.sub(r"(\.(log|out|err|txt|gz))+$", "", name) or name


def _identity(options: Options) -> Identity:
    given = {override.lstrip("+~").partition("=")[0] for override in options.overrides}
    _check_workload(given, options)
    steps = () if "measure.steps" in given else (f"measure.steps={_STEPS}",)
    config = compose((*options.overrides, *steps), options.config_dir)
    preset = "experiment" in given
    if options.like is not None and preset:
        raise UserError(
            "like", str(options.like), "says the workload, as experiment= does", "give one of them"
        )
    like = load_results([options.like]).results[0] if options.like else None
    device = Device.CUDA if config.device == _AUTO else convert(config.device, Device, "", "device")
    return Identity(config=config, preset=preset, like=like, device=device)


def _check_workload(given: set[str], options: Options) -> None:
    """UserError for keys that would say nothing: they change the workload of an experiment."""
    if "experiment" in given:
        return
    told = "like=RESULT tells its own" if options.like else "the log alone tells it"
    for key in sorted(given):
        if key.partition(".")[0] in _WORKLOAD:
            raise UserError(
                key,
                "(given)",
                f"is part of a workload, and {told}",
                "experiment=NAME says which workload is meant",
            )


def _default_name(sources: Sequence[Source]) -> str:
    more = f"-and-{len(sources) - 1}-more" if len(sources) > 1 else ""
    return f"ingested-{sources[0].name}{more}"


def exit_code(results: Sequence[TrialResult]) -> int:
    """4: a run failed; 3: one gave nothing to go by; else 0."""
    statuses = {result.status for result in results}
    if statuses & ({*FAILED, TrialStatus.OOM} - {TrialStatus.NO_DATA}):
        return RUN_FAILED
    return 0 if statuses == {TrialStatus.OK} else NO_VERDICT


def line(one: Ingested) -> str:
    """What a log gave, on one line."""
    result, name = (
        one.result,
        one.source.paths[0] if len(one.source.paths) == 1 else one.source.name,
    )
    head = f"{result.status:<10}  {one.parsed.framework or 'unknown':<15}"
    if result.times is None:
        words = reason(result.evidence) if result.evidence else ""
        return f"{head}  {name}  {words}"
    fatal = [f"{concern.name}: {concern.seen}" for concern in result.concerns if concern.fatal]
    more = [f"and {len(fatal) - _SHOWN} more"] if len(fatal) > _SHOWN else []
    why = f"  ({'; '.join([*fatal[:_SHOWN], *more])})" if fatal else ""
    return f"{head}  {name}  {'  '.join(_figures(result))}{why}"


def _figures(result: TrialResult) -> list[str]:
    """Medians over the steps, the largest peaks of all ranks, the last loss."""
    assert result.times is not None
    count, dropped = len(result.times.seconds), len(result.times.warmup_seconds)
    found = [f"{count} {'step' if count == 1 else 'steps'} after {dropped}"]
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


def _say(text: str) -> None:
    print(f"harness ingest: {text}", file=sys.stderr)
