"""A release that came after all that are known is answered as the newest, and the page says so."""

import pytest

import advisor
from advisor.frameworks.newer_releases import as_newest, is_newer


@pytest.mark.parametrize(
    ("text", "known", "newer"),
    [
        ("0.20", ("0.19", "0.2", "main"), True),
        ("core_v0.20.1", ("0.19",), True),
        ("0.19.3", ("0.19",), False),
        ("0.3", ("0.19",), False),
        ("2.15.0", ("2.9", "2.13"), True),
        ("6", ("4", "5"), True),
        ("2.5", ("1", "2"), False),
        ("main", ("0.19", "main"), False),
        ("x", ("0.19",), False),
    ],
)
def test_is_newer(text, known, newer) -> None:
    assert is_newer(text, known) == newer


@pytest.mark.parametrize(
    ("framework", "asked", "release"),
    [
        ("megatron_lm", "0.21", "main"),
        ("megatron_bridge", "0.7", "main"),
        ("torchtitan", "0.4", "0.3"),
        ("fsdp2", "2.15", "2.13"),
        ("huggingface", "6.0", "5"),
        ("deepspeed", "0.20", "0.19"),
    ],
)
def test_answered_as_the_newest_that_is_known(framework, asked, release) -> None:
    request = {"model": "llama3_8b", "gpus": "8xH100", "framework": framework, "quick": True}
    newer = advisor.advise(**request, framework_version=asked)
    known = advisor.advise(**request, framework_version=release)
    assert f"{framework} {asked} is not known and taken as {release}" in newer.assumptions
    assert newer.candidates == known.candidates
    assert not any("is not known" in line for line in known.assumptions)


def test_newer_transformer_engine() -> None:
    request = {"model": "llama3_8b", "gpus": "8xH100", "quick": True, "recompute": ["none"]}
    for asked, said in (("2.22", True), ("2.20.2", False)):
        advice = advisor.advise(**request, overrides={"job.transformer_engine_version": asked})
        line = as_newest("Transformer Engine", "2.22", "2.20")
        assert (line in advice.assumptions) == said
