"""`--solve`: the value that is found fits when it is asked for, and the next one does not."""

import shlex
from typing import Any

import pytest

import advisor
from advisor.report.solution_page import TITLES
from advisor.request.request import Quantity
from advisor.search.inverse import _doublings, hardest

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("seq_length", {"framework": "megatron_lm", "model": "llama3_70b", "gpus": "32xH100"}),
    ("memory", {"framework": "megatron_bridge", "model": "qwen3_30b_a3b", "gpus": "16xH100"}),
    ("micro_batch_size", {"framework": "nemo", "model": "llama3_8b", "gpus": "8xH100", "tp": 1}),
    ("seq_length", {"framework": "torchtitan", "model": "llama3_8b", "gpus": "8xH100"}),
    ("memory", {"framework": "fsdp2", "model": "llama3_8b", "gpus": "8xH100"}),
    ("micro_batch_size", {"framework": "deepspeed", "model": "llama3_8b", "gpus": "8xA100-80GB"}),
    ("seq_length", {"framework": "huggingface", "model": "llama3_8b", "gpus": "8xH100"}),
    ("gpus", {"framework": "torchtitan", "model": "llama3_8b", "gpus": "H100", "seq_length": 4096}),
    ("seq_length", {"model": "llama3_8b", "gpus": "8xH100", "tp": 2, "cp": 1, "certainty": 0.97}),
]


def _directly(trial: advisor.Trial, request: dict[str, Any]) -> bool:
    """Whether the job fits where the flags of the trial ask for its value."""
    words = shlex.split(trial.asks.replace("--quick", "--quick true"))
    flags = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    given = {
        name: True if name == "quick" else int(value) if value.isdigit() else value
        for name, value in flags.items()
    }
    return advisor.advise(**{**request, **given}).fits


@pytest.mark.parametrize(("quantity", "request_"), ASKED)
def test_the_answer_fits_and_one_step_beyond_does_not(
    quantity: str, request_: dict[str, Any]
) -> None:
    solution = advisor.solve(quantity, **request_)
    assert solution.best is not None
    assert solution.next_harder is not None
    assert solution.certainty == request_.get("certainty", 0.9)
    assert solution.best.fits
    assert _directly(solution.best, request_)
    assert not _directly(solution.next_harder, request_)
    harder, easier = solution.next_harder.value, solution.best.value
    assert (harder < easier) is (quantity in ("gpus", "memory"))


def test_beyond_the_answer_is_another_job() -> None:
    solution = advisor.solve("seq_length", model="llama3_8b", gpus="8xH100", tp=1, cp=1, pp=1)
    assert solution.beyond is not None
    assert solution.value is not None
    assert solution.beyond.value > solution.value
    assert f"At {solution.beyond.value:,} tokens" in solution.verdict
    quick = advisor.solve("seq_length", model="llama3_8b", gpus="8xH100", quick=True)
    assert quick.beyond is None


def test_numbers_of_gpus_are_of_one_job_with_time_and_cost() -> None:
    solution = advisor.solve("gpus", model="llama3_8b", gpus="H100", price_per_gpu_hour=2.0)
    assert solution.best is not None
    fitting = [one for one in solution.trials if one.fits]
    assert len(fitting) >= 4
    assert solution.best.value == min(one.value for one in fitting)
    rows = [one.best for one in fitting if one.best]
    tokens = {row.tokens_per_second * row.step_time_seconds for row in rows}
    assert max(tokens) == pytest.approx(min(tokens))  # the same batch of the same sequences
    for row in rows:
        cost = 2 * row.gpu_hours_per_trillion_tokens
        assert row.price_per_trillion_tokens == pytest.approx(cost)


def test_gpus_are_compared_on_one_job() -> None:
    gpus, prices = ["16xH100", "8xB200", "1xRTX4090"], [2.0, 4.0, 0.5]
    found = advisor.compare(gpus, model="llama3_8b", price_per_gpu_hour=prices, quick=True)
    assert [one.gpus for one in found.trials] == gpus
    assert found.best is not None
    assert not found.trials[2].fits
    assert found.best.best is not None
    times = [one.best.step_time_seconds for one in found.trials if one.best and one.fits]
    assert found.best.best.step_time_seconds == min(times)
    assert "Cheapest: " in found.verdict


def test_nothing_fits() -> None:
    found = advisor.solve("seq_length", model="llama3_70b", gpus="8xH100", tp=8, pp=1, quick=True)
    assert found.best is None
    assert found.value is None
    assert found.verdict.startswith("Nothing fits, not even with 64 tokens (<1 % likely)")


def test_what_was_given_of_the_quantity_is_left() -> None:
    given = advisor.solve(
        "seq_length", model="llama3_8b", gpus="8xH100", overrides={"job.seq_length": 2048}
    )
    assert given.value is not None
    assert given.value > 2048


@pytest.mark.parametrize(
    ("quantity", "request_", "words"),
    [
        ("sequence", {}, "quantity"),
        ("gpus", {"gpus": "8xH900"}, "H900"),
        ("seq_length", {"tp": 3}, "must divide"),
        ("seq_length", {"certainty": 1.5}, "must be from 0.5 to 0.999"),
        ("memory", {"memory_budget": "40GiB"}, "cannot be combined with memory_budget"),
        ("memory", {"overrides": ["job.memory_budget_bytes=40GiB"]}, "cannot be combined with"),
        ("seq_length", {"gpus": "8xH100,8xB200"}, "use advisor.compare"),
    ],
)
def test_a_wrong_request_is_refused(quantity: str, request_: dict[str, Any], words: str) -> None:
    with pytest.raises(advisor.UserError, match=words):
        advisor.solve(quantity, **{"model": "llama3_8b", "gpus": "8xH100", **request_})


@pytest.mark.parametrize("quantity", Quantity)
@pytest.mark.parametrize("start", [0, 7, 39])
@pytest.mark.parametrize("last", [-1, 0, 5, 38, 39])
def test_the_boundary_is_found_from_everywhere(last: int, start: int, quantity: Quantity) -> None:
    values = list(range(1, 41))
    assert hardest(quantity, values, start, lambda place: place <= last) == last


def test_doublings_have_so_many_steps() -> None:
    lengths = list(_doublings(64, 8192))
    assert lengths[:4] == [64, 128, 192, 256]
    assert [one for one in lengths if 4096 <= one <= 8192] == list(range(4096, 8193, 256))


def test_every_quantity_has_its_words() -> None:
    assert set(Quantity) < set(TITLES)


@pytest.mark.parametrize(
    ("quantity", "request_", "value"),
    [
        (
            "gpus",
            {"framework": "fsdp2", "model": "llama3_70b", "gpus": "H100", "quick": True},
            None,
        ),
        ("seq_length", {"model": "llama3_8b", "gpus": "7xH100", "cp": 7, "quick": True}, None),
    ],
)
def test_values_that_are_refused_hide_none(
    quantity: str, request_: dict[str, Any], value: int | None
) -> None:
    """Numbers of GPUs that do not divide the batch; sequences that CP does not divide."""
    found = advisor.solve(quantity, **request_)
    assert found.best is not None
    assert value in (None, found.value)
    assert _directly(found.best, request_)


def test_flags_ask_for_a_key_that_was_given() -> None:
    given = {"overrides": ["job.seq_length=2048"], "quick": True}
    found = advisor.solve("seq_length", model="llama3_8b", gpus="8xH100", tp=2, cp=1, **given)
    assert found.best is not None
    assert found.best.asks.startswith(f"job.seq_length={found.value}")


def test_a_solution_prints_as_its_page_and_its_rows_have_degrees() -> None:
    found = advisor.solve("micro_batch_size", model="llama3_8b", gpus="8xH100", tp=2, quick=True)
    assert "Largest micro batch that fits: " in str(found)
    assert found.verdict.partition(".")[0] in found._repr_html_().replace("&gt;", ">")
    assert {row["tensor_model_parallel_size"] for row in found.rows()} == {2}
