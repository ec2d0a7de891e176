"""Muon as a job, in memory, time and flags, and what lint says of it."""

from typing import Any

import pytest

from advisor.base.dtypes import DType
from advisor.base.rule import Verdict
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import find
from advisor.frameworks.megatron.setting import NONE
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job, Optimizer
from advisor.memory.muon_shares import fullest_share, muon_shares
from advisor.memory.static import stage_elements
from advisor.report.header import layout_words
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from tests.advisor.jobs import evaluator_of
from tests.advisor.refusals import refused


def job(*overrides: str, **request: Any) -> Job:
    """Llama 3 8B on TP 2, DP 2."""
    given: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "global_batch_size": 8,
        "seq_length": 4096,
        **request,
    }
    overrides = ("job.optimizer=dist_muon", *overrides)
    found = resolve(Request(model="llama3_8b", gpus="4xH100", overrides=overrides, **given))
    assert found.layout is not None
    return found.job(found.layout)


@pytest.mark.parametrize(("version", "own"), [("0.16", 1), ("0.17", 0)])
def test_whole_weights_and_gradients_and_the_fullest_ranks_states(version: str, own: int) -> None:
    """The step: 4 bytes of gradient an own parameter, 2 of each gathered, in 0.16 of own twice."""
    dealt = job("job.main_grads_dtype=bf16", framework_version=version)
    evaluator = evaluator_of(dealt)
    shape, chunks = evaluator.shape, evaluator.stages[0]
    fixed = evaluator.stage_detail(NONE, 0).fixed
    share = fullest_share(muon_shares(shape, chunks, dealt.layout, dealt=True))
    elements = stage_elements(shape, chunks)
    assert (fixed.static.weights, fixed.static.gradients) == (2 * elements, 2 * elements)
    assert fixed.static.optimizer == share.state_bytes < 8 * elements
    assert fixed.optimizer_step == 4 * share.elements + 2 * (elements + own * share.elements)


def test_the_step_takes_longer_than_adams_and_the_rest_does_not_change() -> None:
    calibration = load_calibration(job().gpu)
    alike = ("layout.use_distributed_optimizer=false", "layout.overlap_grad_reduce=true")
    adam, dealt, whole = (
        Evaluator(job(f"job.optimizer={name}", *alike), calibration).evaluate(NONE).time_seconds
        for name in ("adam", "dist_muon", "muon")
    )
    assert adam.forward == dealt.forward
    assert adam.optimizer < whole.optimizer
    assert dealt.optimizer < whole.optimizer
    assert adam.exposed_communication == whole.exposed_communication < dealt.exposed_communication


def test_flags_and_the_pages_word() -> None:
    dealt = job()
    flags = parts_of(Framework.MEGATRON_LM).spelling.assumed_flags(dealt)
    assert "--optimizer dist_muon --no-use-layer-wise-param-layout" in flags
    of_0_17 = job(framework_version="0.17")
    assert "layer-wise" not in parts_of(Framework.MEGATRON_LM).spelling.layout_flags(of_0_17)
    overrides = parts_of(Framework.MEGATRON_BRIDGE).spelling.layout_flags(dealt)
    assert "optimizer.optimizer=dist_muon ddp.use_distributed_optimizer=false" in overrides
    assert layout_words(dealt.layout, dealt.config.optimizer) == "TP 2 +SP · DP 2 · dist_muon"


@pytest.mark.parametrize(
    ("changes", "request_", "words"),
    [
        (["layout.use_distributed_optimizer=true"], {}, "layout.use_distributed_optimizer=false"),
        (["job.use_precision_aware_optimizer=true"], {}, "works only with Adam, but"),
        (["job.optimizer_cpu_offload=true"], {}, "works only with Adam, but"),
        ([], {"precision": "fp16"}, "does not support fp16; --precision bf16"),
        ([], {"framework_version": "0.15"}, "is not in megatron-core 0.15"),
        ([], {"framework": "torchtitan"}, "not modelled for torchtitan; --framework megatron_lm"),
        ([], {"framework": "nemo"}, "not modelled for nemo"),
        (["job.optimizer=moun"], {}, "must be one of adam, muon, dist_muon"),
    ],
)
def test_refusals_in_one_line(changes: list[str], request_: dict[str, Any], words: str) -> None:
    with refused(words):
        job(*changes, **request_)


def test_plain_muon_overlaps_nothing_before_0_18() -> None:
    stack = parts_of(Framework.MEGATRON_LM)
    plain = job("job.optimizer=muon", framework_version="0.17")
    assert not plain.layout.overlap_grad_reduce
    assert not stack.settings.check(NONE, plain)
    asked = job("job.optimizer=muon", "layout.overlap_grad_reduce=true", framework_version="0.17")
    assert [rejection.rule for rejection in stack.settings.check(NONE, asked)] == ["muon_overlap"]


SHARDED, OVERLAPS = {"use_distributed_optimizer": True}, {"overlap_grad_reduce": True}


@pytest.mark.parametrize(
    ("version", "raw", "rule"),
    [
        ("0.15", {}, "muon_release"),
        ("0.16", SHARDED, "muon_distributed_optimizer"),
        ("0.17", OVERLAPS, "muon_overlap"),
        ("0.17", OVERLAPS | {"optimizer": "dist_muon"}, ""),
        ("0.18", SHARDED | OVERLAPS, "muon_becomes_layer_wise"),
        ("0.15", SHARDED | {"optimizer": "adam"}, ""),
        ("0.19", {"optimizer": "soap"}, ""),
    ],
)
def test_what_releases_make_of_it(version: str, raw: dict[str, Any], rule: str) -> None:
    """All refused, except what a release makes of a sharded optimizer."""
    settings = RawSettings(**{"optimizer": "muon", **raw})
    found = find(settings, resolve_revision(Framework.MEGATRON_LM, version))
    verdict = Verdict.NOTE if rule == "muon_becomes_layer_wise" else Verdict.REFUSED
    assert [(one.rule, one.verdict) for one in found] == ([(rule, verdict)] if rule else [])


def of_recipe(model: str, gpus: str, *overrides: str) -> Job:
    """The job of a recipe on its own GPUs, or its nearest recipe's."""
    found = resolve(Request(model=model, gpus=gpus, overrides=overrides))
    assert found.layout is not None
    return found.job(found.layout)


def test_what_a_recipe_has_for_its_own_optimizer_goes_with_it_unless_it_is_given() -> None:
    dealt = of_recipe("moonlight_16b_a3b", "32xH100", "job.optimizer=dist_muon").config
    assert not dealt.use_precision_aware_optimizer
    assert dealt.exp_avg_dtype is dealt.exp_avg_sq_dtype is DType.FP32
    assert dealt.main_grads_dtype is DType.BF16
    kimi = ("kimi_k2", "512xH100", "job.optimizer=adam")
    assert of_recipe(*kimi).layout.use_distributed_optimizer
    given = of_recipe(*kimi, "layout.use_distributed_optimizer=false")
    assert not given.layout.use_distributed_optimizer


@pytest.mark.parametrize(
    ("changes", "optimizer"),
    [
        ({}, Optimizer.DIST_MUON),
        ({"framework_version": "0.15"}, Optimizer.ADAM),
        ({"precision": "fp16"}, Optimizer.ADAM),
        ({"overrides": ("layout.use_distributed_optimizer=true",)}, Optimizer.ADAM),
        ({"overrides": ("job.optimizer=adam",)}, Optimizer.ADAM),
    ],
)
def test_a_job_without_a_recipe_takes_the_nearest_ones_optimizer(changes, optimizer) -> None:
    found = resolve(Request(model="kimi_k2", gpus="192xH100", **changes))
    assert found.config.optimizer is optimizer
    lent = "dist_muon as in the nearest recipe" in found.assumptions
    assert lent is (optimizer is Optimizer.DIST_MUON)
