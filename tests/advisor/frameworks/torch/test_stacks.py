"""Each stack's candidates, refusals, versions and layouts, as a user meets them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.torch.setting import FULL, NONE, every, parse_setting, sequential
from advisor.hardware.calibration import load_calibration
from advisor.job.layout import DataParallelSharding
from advisor.memory.allocator import reserved_memory
from advisor.models.options import TransformerImpl
from advisor.plan.recompute_plan import Checkpoint
from advisor.report.plain_advice import plain_advice
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise
from advisor.search.rank_shape import rank_shape
from advisor.search.step_time_band import step_time_error
from tests.advisor.jobs import batches, evaluator_of
from tests.advisor.refusals import refused
from tests.advisor.tables import tables

from .jobs import stack_job

TABLES = tables(__file__)

STACKS = ("torchtitan", "fsdp2", "deepspeed", "huggingface")


def specs(framework: str, **options: Any) -> list[str]:
    stack, job = stack_job(framework, **options)
    return [setting.spec for setting in stack.settings.candidates(job)]


def test_candidates_are_each_stacks_own() -> None:
    every_nth = [f"selective:{n}" for n in (2, 3, 4, 6, 8)]
    older = specs("torchtitan", framework_version="0.2")
    assert older == ["none", "full", *every_nth, "op:torchtitan"]
    assert specs("torchtitan", framework_version="0.3") == ["none", "full", "op:torchtitan"]
    policies = ["op:save_attention", "op:save_matmul"]
    segments = ["sequential:2", "sequential:6", "sequential:32"]  # round(sqrt(32)) = 6
    assert specs("fsdp2") == ["none", "full", "full+offload", *every_nth, *policies, *segments]
    assert specs("fsdp2", gpus="1xH200")[-3:] == segments
    away = "full+cpu_checkpointing"
    assert specs("deepspeed") == ["none", "full", away]
    zero_1 = ("layout.data_parallel_sharding=optimizer",)
    assert specs("deepspeed", overrides=zero_1) == ["none", "full", away, "uniform:2", "uniform:6"]
    assert specs("huggingface", framework_version="4") == ["none", "full"]
    newer = specs("huggingface", framework_version="5.23.0")
    assert newer == ["none", "full", "full+offload", *every_nth]
    face = (*zero_1, "model.transformer_impl=transformers")
    assert specs("deepspeed", overrides=face) == ["none", "full"]


@pytest.mark.parametrize("framework", STACKS)
def test_every_rejection_has_a_reason_and_a_source(framework: str) -> None:
    stack, job = stack_job(framework)
    found = stack.settings.rejected(job)
    assert found
    legal = {setting.spec for setting in stack.settings.candidates(job)}
    for rejection in found:
        assert rejection.reason
        assert rejection.fix
        assert rejection.source
        assert rejection.setting.spec not in legal


@pytest.mark.parametrize(
    ("framework", "options", "words"),
    TABLES["test_what_a_stack_cannot_run_is_one_line"],
)
def test_what_a_stack_cannot_run_is_one_line(framework, options, words) -> None:
    """`options` may be one KEY=VALUE."""
    with refused(words):
        stack_job(framework, **({"overrides": (options,)} if isinstance(options, str) else options))


def test_layers_and_layout() -> None:
    _, titan = stack_job("torchtitan")
    assert titan.model.transformer_impl is TransformerImpl.TORCH
    assert titan.model.padded_vocab_size(1) == 128256
    assert titan.layout.data_parallel_size == 8
    assert titan.layout.data_parallel_sharding is DataParallelSharding.FULL
    _, face = stack_job("huggingface")
    assert face.model.transformer_impl is TransformerImpl.TRANSFORMERS
    _, mixed = stack_job("fsdp2", overrides=("model.transformer_impl=transformers",))
    assert mixed.model.transformer_impl is TransformerImpl.TRANSFORMERS


def test_versions_decide_how_a_checkpoint_runs() -> None:
    def kind(framework: str, version: str) -> Checkpoint:
        stack, job = stack_job(framework, framework_version=version)
        shape_layers = job.model.layer_kinds[:1]
        plan = stack.memory.plan(parse_setting("full"), rank_shape(job), shape_layers, job)
        return plan.segments[0].checkpoint

    assert kind("torchtitan", "0.1") is Checkpoint.EARLY_STOP
    assert kind("torchtitan", "0.2") is Checkpoint.NON_REENTRANT
    assert kind("huggingface", "4") is Checkpoint.REENTRANT
    assert kind("huggingface", "5") is Checkpoint.EARLY_STOP
    assert kind("deepspeed", "0.19") is Checkpoint.REENTRANT


@pytest.mark.parametrize("framework", STACKS)
def test_advice_from_end_to_end(framework: str) -> None:
    request = Request(
        model="llama3_8b", gpus="8xH100", framework=framework, **batches(8192, 2, 16), quick=True
    )
    advice = advise(request)
    report = json.loads(plain_advice(advice, explained=1).to_json())
    assert report["job"]["framework"] == framework
    by_spec = {c["recompute"]["spec"]: c for c in report["candidates"]}
    none, full = by_spec["none"], by_spec["full"]
    assert not none["fits"]
    assert full["fits"]
    assert full["peak_allocated_bytes"] < none["peak_allocated_bytes"]
    assert full["saved_bytes_per_layer"]["dense"] == 2 * 8192 * 4096 * 2
    assert 0.2 < full["recompute_overhead"] < 0.34  # a forward is a third of a step without replay
    assert set(full["flags"]) == {framework}
    assert {"granularity", "modules", "method", "num_layers"} <= set(full["recompute"])
    explained = sum(line["num_bytes"] for line in report["explain"]["memory"])
    best = report["candidates"][0]
    assert abs(explained - best["peak_reserved_bytes"]) <= len(report["explain"]["memory"])


def test_a_search_ranks_every_sharding() -> None:
    request = Request(
        model="llama3_8b",
        gpus="8xH100",
        framework="deepspeed",
        **batches(2048, 1, 8),
        search=SearchScope.LAYOUT,
    )
    advice = advise(request)
    found = {c.evaluation.job.layout.data_parallel_sharding for c in advice.candidates}
    assert len(found) > 1
    first = advice.candidates[0].evaluation
    for sharding in DataParallelSharding:
        override = f"layout.data_parallel_sharding={sharding}"
        alone = replace(request, search=None, quick=True, overrides=(override,))
        best = advise(alone).candidates[0].evaluation
        assert not best.fits or first.step_time_seconds <= best.step_time_seconds


def test_an_unsure_budget_widens_the_probability_of_fitting() -> None:
    _, job = stack_job("fsdp2")
    setting, evaluator = parse_setting("budget:0.5"), evaluator_of(job)
    detail = evaluator.stage_detail(setting, 0)
    sure = reserved_memory(
        detail.reserved.allocated,
        job.layout,
        expandable_segments=job.config.expandable_segments,
        pools=detail.fixed.pools,
        eager=True,
    )
    ((chunk,),) = evaluator.stages
    unsure = evaluator.plan(setting, chunk.layers).kept_bytes_sigma
    assert unsure > 32 * 100 * 2**20  # 32 blocks of 1.00 or 1.12 GiB
    assert detail.reserved.spread == pytest.approx((sure.spread**2 + unsure**2) ** 0.5)


def test_settings_that_spare_less_save_more() -> None:
    stack, job = stack_job("fsdp2", gpus="1xH200")
    assert stack.settings.notes(every(2), job) == ()
    (unsure,) = stack.settings.notes(parse_setting("budget:0.5"), job)
    assert unsure.startswith("a block keeps 1.00 GiB with flash attention (assumed), or 1.12")
    assert stack.settings.notes(parse_setting("budget:0.8"), job) == ()
    assert stack.settings.check(sequential(2), job) == ()


@pytest.mark.parametrize(
    ("spec", "kind", "made"),
    [
        ("none", "", None),
        ("full", "FullAC", ()),
        ("op:torchtitan", "SelectiveAC", ()),
        ("budget:0.25", "MemoryBudgetAC", (0.25,)),
    ],
)
def test_torchtitan_0_3_gets_a_function_for_its_recipes(spec: str, kind: str, made: Any) -> None:
    """Run on fields and classes by the names of torchtitan 0.3.0 (config/configs.py,
    distributed/activation_checkpoint.py); the package wants a GPU's libraries to be imported."""
    stack, job = stack_job("torchtitan", framework_version="0.3")
    head, function, body = stack.spelling.config_file(stack.settings.parse(spec), job).partition(
        "def recompute"
    )
    module = "torchtitan.distributed.activation_checkpoint"
    assert head.split("\n")[0] == (f"from {module} import {kind}" if kind else "")
    names: dict[str, Any] = {kind: SimpleNamespace(Config=lambda **given: tuple(given.values()))}
    exec(function + body, names)
    sections = ("training", "parallelism", "compile")
    config = names["recompute"](SimpleNamespace(**{n: SimpleNamespace() for n in sections}))
    assert config.activation_checkpoint == made
    batch = {"local_batch_size": job.config.micro_batch_size, "seq_len": job.config.seq_length}
    assert vars(config.training) == batch | {"global_batch_size": job.config.global_batch_size}
    assert config.parallelism.data_parallel_shard_degree == 8
    assert config.parallelism.fsdp_reshard_after_forward == "default"
    assert vars(config.compile) == ({"enable": True} if spec == "budget:0.25" else {})


def test_accelerate_reduces_with_the_last_microbatch_unless_set_otherwise() -> None:
    each_batch = ("job.sync_each_batch=true",)
    rows = (("huggingface", (), 1), ("huggingface", each_batch, 4))
    for framework, overrides, reductions in (*rows, ("fsdp2", (), 4), ("deepspeed", (), 4)):
        stack, job = stack_job(framework, overrides=overrides, global_batch_size=64)
        assert job.num_microbatches == 4
        assert stack.memory.reductions(job) == reductions


def test_reducing_every_microbatch_takes_time_between_nodes() -> None:
    """Short sequences on eight nodes."""
    seconds = []
    for overrides in ((), ("job.sync_each_batch=true",)):
        options = {"seq_length": 1024, "micro_batch_size": 1, "global_batch_size": 1024}
        _, job = stack_job("huggingface", "64xH100", overrides=overrides, **options)
        seconds.append(evaluator_of(job).evaluate(FULL).step_time_seconds)
    assert seconds[1] > 1.02 * seconds[0]


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp2"])
def test_compiled_without_a_budget_is_a_budget_of_one(framework: str) -> None:
    """activation_memory_budget = 1 is torch's default."""
    _, job = stack_job(framework, overrides=("job.torch_compile=true",))
    evaluator = evaluator_of(job)
    plain, one = (evaluator.evaluate(parse_setting(spec)) for spec in ("none", "budget:1"))
    assert plain.peak == one.peak
    assert plain.time_seconds == one.time_seconds
    assert plain.time_seconds.recompute == 0.0


@pytest.mark.parametrize("spec", ["none", "full", "op:torchtitan"])
def test_compiled_blocks_keep_no_more(spec: str) -> None:
    """Less without a checkpoint and under a policy, whose last linear layer nothing needs again;
    a checkpoint keeps its input either way."""
    kept = {}
    for compiled in ("false", "true"):
        _, job = stack_job("torchtitan", overrides=(f"job.torch_compile={compiled}",))
        found = evaluator_of(job).evaluate(parse_setting(spec))
        (kept[compiled],) = found.detail.saved_bytes_per_layer.values()
    output = 2 * job.config.seq_length * job.model.hidden_size * DType.BF16.itemsize
    if spec == "op:torchtitan":
        assert kept["false"] - kept["true"] == pytest.approx(output, abs=32)
    else:
        assert (kept["true"] < kept["false"]) == (spec == "none")


def test_compiled_blocks_are_printed_and_layers_unknown_to_the_compiler_named() -> None:
    compiled = ("job.torch_compile=true",)
    stack, job = stack_job("torchtitan", model="qwen3_30b_a3b", overrides=compiled)
    assert any("torch.compile is not modelled" in note for note in stack.settings.notes(NONE, job))
    stack, job = stack_job("fsdp2", overrides=compiled)
    flags = stack.spelling.setting_flags(parse_setting("full"), job)
    assert flags.index("checkpointing(model") < flags.index("block.compile()")
    assert flags.index("block.compile()") < flags.index("fully_shard")


@pytest.mark.parametrize(
    ("gpus", "overrides", "spec", "words"),
    TABLES["test_where_accelerate_computes_in_fp8"],
)
def test_where_accelerate_computes_in_fp8(gpus, overrides, spec, words) -> None:
    options = {"precision": "fp8_delayed", "micro_batch_size": 1, "overrides": overrides}
    parts, job = stack_job("huggingface", gpus, **options)
    reasons = [one.reason for one in parts.settings.check(parts.settings.parse(spec), job)]
    assert [words in reason for reason in reasons] == [True] * bool(words)


def test_accelerates_fp8_is_written_where_accelerate_reads_it() -> None:
    for gpus, precision, backend in (("1xH100", "delayed", "TE"), ("8xH100", "current", "AO")):
        parts, job = stack_job("huggingface", gpus, precision=f"fp8_{precision}")
        file = parts.spelling.config_file(parse_setting("none"), job)
        assert f"mixed_precision: fp8\nfp8_config:\n  backend: {backend}\n" in file
        assert ("distributed_type: 'NO'" in file) is (backend == "TE")
        said = parts.spelling.environment(parse_setting("none"), job)
        assert f"ACCELERATE_FP8_BACKEND={backend}" in said
        assert "--bf16" not in parts.spelling.layout_flags(job)
        assert step_time_error(job, load_calibration(job.gpu)) == 0.5
