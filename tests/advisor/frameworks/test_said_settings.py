"""A setting that the words of a framework cannot tell from another is no candidate of it."""

import pytest

import advisor
from advisor.frameworks.names import Framework


@pytest.mark.parametrize("framework", Framework)
@pytest.mark.parametrize(
    ("model", "gpus"), [("qwen2.5_7b", "8xH100"), ("qwen3_30b_a3b", "16xH100")]
)
def test_candidates_print_different_flags(framework: Framework, model: str, gpus: str) -> None:
    advice = advisor.advise(
        model=model, gpus=gpus, framework=framework, seq_length=4096, quick=True
    )
    printed = [(row.flags[framework], *row.job_flags.values()) for row in advice.candidates]
    assert len({*printed}) == len(printed) > 1
