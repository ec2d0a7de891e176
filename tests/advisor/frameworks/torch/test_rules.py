"""Each rule of a PyTorch stack refuses its own example, in every release that has it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import fields, replace

from advisor.frameworks.registry import parts_of
from advisor.frameworks.torch.rules import TorchRule, in_release
from advisor.frameworks.torch.setting import parse_setting
from advisor.frameworks.torch.stack import TorchSettings
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job

from .jobs import stack_job


def settings_of(framework: str) -> TorchSettings:
    settings = parts_of(framework).settings
    assert isinstance(settings, TorchSettings)
    return settings


def rules_of(settings: TorchSettings) -> dict[str, TorchRule]:
    return {**settings.layout_rules, **settings.setting_rules}


RELEASES = [
    (framework, release)
    for framework in ("torchtitan", "fsdp2", "deepspeed", "huggingface")
    for release in settings_of(framework).facts.versions
]
BROKEN = [
    (framework, release, name)
    for framework, release in RELEASES
    for name in in_release(rules_of(settings_of(framework)), release)
    if release
    in (settings_of(framework).facts.versions[0], settings_of(framework).facts.versions[-1])
]


def changed(job: Job, pairs: list[str]) -> Job:
    """`job` with KEY=VALUE, as no request would let it be."""
    inside = ("tuning", "head")  # records of the job's own options
    parts: dict[str, dict[str, Any]] = {one: {} for one in ("model", "layout", "config", *inside)}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key == "gpus":
            job = replace(job, gpu=load_gpu(text))
            continue
        part, name = key.replace("job.", "config.").split(".")
        record = getattr(job.config if part in inside else job, part)
        kind = {one.name: one.type for one in fields(type(record))}[name]
        value = text.split(",") if "," in text or "tuple" in str(kind) else text
        parts[part][name] = msgspec.convert(value, kind, strict=False)
    own = {one: replace(getattr(job.config, one), **parts[one]) for one in inside}
    config, layout = replace(job.config, **parts["config"], **own), parts["layout"]
    degrees = 1
    for name in ("tensor_model", "pipeline_model", "context"):
        degrees *= layout.get(f"{name}_parallel_size", 1)
    layout["data_parallel_size"] = job.num_gpus // degrees
    model = replace(job.model, **parts["model"])
    return replace(job, model=model, layout=replace(job.layout, **layout), config=config)


@pytest.mark.parametrize(("framework", "release", "name"), BROKEN)
def test_a_rule_refuses_its_example(framework: str, release: str, name: str) -> None:
    settings = settings_of(framework)
    rule = rules_of(settings)[name]
    words = rule.example.split()
    specs = [word for word in words if "=" not in word] or ["none"]
    _, job = stack_job(framework, framework_version=release)
    job = changed(job, [word for word in words if "=" in word])
    broken = [one for spec in specs for one in settings.check(parse_setting(spec), job)]
    (found, *_) = [one for one in broken if one.rule == name]
    assert found.fix
    assert found.source
    assert "{" not in found.reason + found.fix
    plain = settings.check(
        parse_setting("none"), stack_job(framework, framework_version=release)[1]
    )
    assert name not in [one.rule for one in plain]


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp2", "deepspeed", "huggingface"])
def test_the_list_of_rules_names_settings_that_the_framework_lacks(framework: str) -> None:
    settings, job = settings_of(framework), stack_job(framework)[1]
    for _, name, line in settings.rules_overview("").rules:
        for word in line.partition(": ")[0].split() if "unknown_" in name else ():
            if "=" not in word:
                found = settings.check(parse_setting(word), job)
                assert name == "budget.unknown_graph" or name in [one.rule for one in found]
