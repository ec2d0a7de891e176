"""Jobs of samples of several lengths: the answer is that of plain jobs of the worst and the mean
microbatch, and says how soon a run meets what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

import advisor
from advisor.answer.advice import Advice
from advisor.cli.main import main
from advisor.job.microbatches import microbatches
from advisor.models.options import TransformerImpl
from advisor.request.request import Request
from advisor.search.advise import advise
from advisor.search.evaluate import evaluate
from advisor.search.rank_shape import rank_shape
from tests.advisor.refusals import refused

LENGTHS = "p50=900,p99=9000,max=32768"
FULL: dict[str, Any] = {
    **{"model": "llama3_8b", "gpus": "8xH100", "recompute": "full", "quick": True},
    **{"global_batch_size": 512, "framework": "fsdp2", "lengths": LENGTHS},
}
TENSOR = {
    **{"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1},
    **{"context_parallel_size": 1, "recompute": ("full:uniform:1",)},
}


def _packed(**more: Any) -> Advice:
    return advisor.advise(**{**FULL, "max_tokens_per_gpu": 16384, **more})


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("fsdp2", {"max_tokens_per_gpu": 16384}),
        ("megatron_lm", {"max_tokens_per_gpu": 16384, **TENSOR}),
        ("deepspeed", {"packing": "packed", "seq_length": 8192}),
        ("huggingface", {"packing": "padded", "micro_batch_size": 4}),
        ("huggingface", {"overrides": ("job.attn_implementation=flash_attention_2",)}),
    ],
)
def test_peaks_are_of_the_worst_row_and_times_of_the_mean_one(
    framework: str, more: dict[str, Any]
) -> None:
    own = {**FULL, "framework": framework, "recompute": ("full",), **more}
    (best,) = advise(Request(**own)).candidates
    own_evaluation = best.evaluation
    found = microbatches(own_evaluation.job)
    for job, name in ((found.worst, "peak_reserved_bytes"), (found.mean, "step_time_seconds")):
        plain = evaluate(job, own_evaluation.setting, own_evaluation.calibration)
        assert getattr(own_evaluation, name) == getattr(plain, name)
    assert found.worst.config.seq_length > found.mean.config.seq_length or "packing" in more
    shape = rank_shape(found.worst)
    transformers = shape.model.transformer_impl is TransformerImpl.TRANSFORMERS
    assert shape.masked is (transformers and "overrides" not in more)
    assert not found.worst.config.loads_attention_mask


def test_why_at_step_412() -> None:
    """The longest row until a step has its own peak, and the first that does not fit its odds."""
    advice = _packed(gpus="8xA100-80GB", max_tokens_per_gpu=8192)
    note = advice.samples
    assert note is not None
    assert not advice.fits
    assert note.worst_tokens == 32768
    assert [one.step for one in note.until] == [1, 10, 100, 412, 1000]
    peaks = [one.peak_reserved_bytes for one in note.until]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
    best = advice.candidates[0]
    assert note.until[-1].tokens == note.worst_tokens
    assert note.until[-1].peak_reserved_bytes == best.peak_reserved_bytes
    assert note.most_tokens_that_fit is not None
    assert 8192 < note.most_tokens_that_fit < 32768
    for row, fits in ((note.most_tokens_that_fit, True), (note.most_tokens_that_fit + 512, False)):
        plain = advisor.advise(
            **{**FULL, "gpus": "8xA100-80GB", "lengths": None}, seq_length=row, micro_batch_size=1
        )
        assert plain.fits is fits
    share, half = note.share_of_steps_that_run_out, note.even_odds_by_step
    assert half is not None
    assert (1 - share) ** half == pytest.approx(0.5, abs=0.1)


def test_padding_costs_what_packing_saves() -> None:
    padded = advisor.advise(**{**FULL, "packing": "padded", "micro_batch_size": 8})
    packed = _packed(max_tokens_per_gpu=32768)
    assert padded.best is not None
    assert packed.best is not None
    assert padded.samples is not None
    assert packed.samples is not None
    assert packed.samples.padding < 0.01 < 0.5 < padded.samples.padding
    assert packed.best.tokens_per_second > 2 * padded.best.tokens_per_second
    assert any(one.change == "--max-tokens-per-gpu 32768" for one in padded.remedies)


def test_attention_takes_less_time_where_samples_stay_apart() -> None:
    apart, together = _packed(), _packed(overrides=["samples.masks=joined"])
    assert apart.best is not None
    assert together.best is not None
    assert apart.best.peak_reserved_bytes == together.best.peak_reserved_bytes
    assert apart.best.step_time_seconds < together.best.step_time_seconds


def test_the_largest_budget() -> None:
    """It fits, the next one does not, and without lengths a pack is as long as the budget."""
    own = {**FULL, "lengths": "p50=900,p99=4000,max=8192"}
    for more in (own, {**own, "lengths": None, "seq_length": 4096}):
        solution = advisor.solve("tokens", **more)
        assert solution.best is not None
        assert solution.best.best is not None
        assert solution.next_harder is not None
        assert f"{solution.value:,} tokens per GPU" in solution.verdict
        for trial, fits in ((solution.best, True), (solution.next_harder, False)):
            asked = advisor.advise(**more, max_tokens_per_gpu=trial.value)
            assert asked.fits is fits
            assert asked.samples is not None
            assert asked.samples.worst_tokens == trial.value
    alone = advisor.solve("tokens", **{**FULL, "gpus": "8xA100-40GB"})
    assert alone.best is None
    assert "longest sample" in alone.verdict


def test_pages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100\n200\n8192\n" * 4)
    words = "--model llama3_8b --gpus 8xH100 --framework fsdp2 --recompute full --quick"
    for flags, says in (
        (f"--lengths {LENGTHS} --max-tokens-per-gpu 8192", "(one sample, longer than the budget)"),
        (f"--lengths {LENGTHS} --max-tokens-per-gpu 8192", "packs of 8192 tokens per GPU"),
        (f"--lengths {path} --micro-batch-size 2", "samples of at most 8192 tokens"),
        (f"--lengths {path} --micro-batch-size 2", "padding"),
        (f"--lengths {path} --packing packed", "packed in rows of 8192 tokens"),
    ):
        main([*words.split(), *flags.split()])
        assert says in capsys.readouterr().out
    main([*words.split(), *f"--lengths {path} --format json".split()])
    note = json.loads(capsys.readouterr().out)["samples"]
    assert note["longest"] == 8192
    assert note["mean_length"] == pytest.approx((100 + 200 + 8192) / 3)


def test_where_samples_must_be_cut() -> None:
    """No row is longer than the longest sample."""
    own = {**FULL, "gpus": "8xH100", "lengths": "p50=900,p99=4000,max=7000"}
    assert advisor.solve("seq_length", **own).value == 7000
    small = advisor.solve("seq_length", **{**own, "gpus": "8xA100-40GB", "micro_batch_size": 4})
    assert small.value is not None
    assert small.value < 7000


def test_a_larger_budget_is_not_mended_by_a_smaller_one() -> None:
    found = advisor.solve("tokens", **{**FULL, "lengths": "max=8192", "quick": False})
    assert found.value is not None
    assert "use --max-tokens-per-gpu" not in found.verdict


def test_a_budget_that_the_first_packs_exceed() -> None:
    """Full packs are in every step, however rare samples of their length are."""
    note = _packed(gpus="8xA100-80GB", max_tokens_per_gpu=32768).samples
    assert note is not None
    assert note.share_of_steps_that_run_out == 1
    assert note.even_odds_by_step is None
    assert note.until == ()


def test_keys_of_samples_are_compared_one_by_one() -> None:
    found = advisor.diff(advisor.advise(**FULL), _packed(max_tokens_per_gpu=8192))
    (changed,) = [one for one in found.job if one.field.startswith("samples.")]
    assert (changed.field, changed.second) == ("samples.token_budget", "8192")
    assert changed.second_origin == "given"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--lengths nowhere.txt", "samples.lengths = nowhere.txt: no such file"),
        ("--lengths p50=9,p99=3,max=20", "must not be shorter"),
        ("--max-tokens-per-gpu 0", "--max-tokens-per-gpu = 0: must be at least 1"),
        ("samples.token_budget=-1", "samples.token_budget = -1: must be at least 1"),
        ("--packing tight", "--packing = tight: is unknown"),
        ("--packing padded --max-tokens-per-gpu 9", "cannot be combined"),
        ("--max-tokens-per-gpu 99 samples.masks=dense", "is not modelled with layers of fsdp2"),
    ],
)
def test_a_wrong_request_is_one_line(
    flags: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--model llama3_8b --gpus 8xH100 --framework fsdp2"
    assert main([*words.split(), *flags.split()]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert says in line


def test_keywords() -> None:
    with refused("max_tokens_per_gpu"):
        _packed(max_tokens_per_gpu=0)
    with refused("packing"):
        _packed(packing="tight")
