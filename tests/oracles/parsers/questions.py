"""Every kind of line that we print for the presets, by the program that reads it."""

import shlex
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain, islice
from typing import Final

from advisor.base.errors import UserError
from advisor.frameworks.dialect_rows import dialect_names
from advisor.frameworks.megatron.flags import override, words
from advisor.frameworks.megatron.options.table import SECTIONS, SETTINGS
from advisor.frameworks.megatron.raw import job_values
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.models.presets import model_names
from advisor.plan.recompute_plan import Setting
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.layouts import layouts

CASES: Final = (
    ("64xH100", "bf16"),
    ("8xH200", "bf16"),
    ("256xB200", "mxfp8"),
    ("64xH100", "fp8_current"),
)
OF_A_JOB: Final = 3
TUNED: Final = (
    ("tuning.adapter=lora", "samples.packing=packed"),
    ("tuning.adapter=lora", "tuning.rank=64", "tuning.base_weights=nf4"),
    ("tuning.adapter=dora", "tuning.target_modules=q_proj,v_proj", "tuning.dropout=0.1"),
    ("tuning.adapter=lora", "tuning.base_weights=int8", "tuning.modules_to_save=embed_tokens"),
    ("rl.algorithm=grpo", "rl.engine=vllm", "rl.sleep_level=2", "rl.num_generations=4"),
    ("rl.algorithm=dpo", "tuning.adapter=lora"),
    ("tuning.num_trainable_layers=4",),
)
"""Jobs of the dialects."""


def jobs(framework: Framework, version: str) -> Iterator[tuple[Job, int]]:
    """Of every preset that the release runs, with how many of its settings are asked: on each of
    CASES in the layout that is answered for, or in one that is searched; and the first of them with
    each change that a search makes."""
    changes = parts_of(framework).jobs.job_changes
    for model in model_names():
        asked = {"model": model, "framework": framework, "framework_version": version}
        found = [
            job
            for gpus, precision in CASES
            for job in _resolved(Request(gpus=gpus, precision=precision, **asked))
        ]
        yield from ((job, OF_A_JOB) for job in found)
        for change in changes(found[0]) if found else ():
            try:
                yield change.make(), 1
            except UserError:
                continue


def tuned_jobs(framework: Framework) -> Iterator[tuple[Job, int]]:
    """Those that a dialect has words for, each on one GPU and on several."""
    for overrides in TUNED if framework in dialect_names() else ():
        for gpus in ("1xH100", "8xH100"):
            request = Request(model="qwen3_8b", gpus=gpus, framework=framework, overrides=overrides)
            yield from ((job, OF_A_JOB) for job in _resolved(request))


def _resolved(request: Request) -> Iterator[Job]:
    try:
        found = resolve(request)
    except UserError:
        return
    searched = islice(layouts(found), sum(map(ord, f"{request.model}{request.gpus}")) % 40, None, 9)
    for layout in searched if found.layout is None else [found.layout]:
        try:
            yield found.job(layout)
        except UserError:
            continue
        return


def questions(framework: Framework, version: str, *, file: bool) -> list[str]:
    """The lines of a release, or its files, each below the line that its user brings."""
    spelling, settings = parts_of(framework).spelling, parts_of(framework).settings
    found = set()
    for job, count in chain(jobs(framework, version), tuned_jobs(framework)):
        layout = spelling.layout_flags(job)
        drawn = sorted(settings.tried(job), key=lambda one: _digest(f"{layout} {one.spec}"))
        legal = (one for one in drawn if not settings.check(one, job))
        for setting in islice(legal, count):
            own = spelling.setting_flags(setting, job)
            try:
                text = spelling.config_file(setting, job) if file else f"{layout} {own}".strip()
            except UserError:
                continue
            found.add(f"{shlex.join(brought(job, setting))}\n{text}")
    return sorted(found)


def _digest(text: str) -> bytes:
    """By which settings are drawn: which are asked changes with the line alone."""
    return sha256(text.encode()).digest()


def brought(job: Job, setting: Setting) -> Iterator[str]:
    """The number of GPUs and the environment; for Megatron the model's shape."""
    framework = Framework(str(job.config.framework))
    yield str(job.num_gpus)
    yield from parts_of(framework).spelling.environment(setting, job)
    lm = framework is Framework.MEGATRON_LM
    if not lm and framework is not Framework.MEGATRON_BRIDGE:
        return
    revision = resolve_revision(framework, job.config.framework_version)
    values = job_values(job, revision)
    for row in SECTIONS["Shape"].rows if lm else SETTINGS.values():
        value = values.get(row.name)
        if value is None or not row.ours.startswith("model.") or not row.in_release(revision):
            continue
        if lm and value != row.omitted and (row.flag or row.off):
            yield from words(row, value, revision)
        elif not lm and value != row.default and row.bridge.startswith("model."):
            yield override(row.bridge, row, value)
