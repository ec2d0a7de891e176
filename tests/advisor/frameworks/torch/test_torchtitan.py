"""torchtitan's layouts, what it refuses of them, and what its lists keep."""

from pathlib import Path
from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.cli.main import main
from advisor.frameworks.torch.setting import FULL, OpPolicy, op
from advisor.job.pipeline_split import pipeline_stages
from advisor.layers.operators import CollectiveKind
from advisor.layers.transformer import transformer_layer
from advisor.lint.request_from import read_job
from advisor.models.options import AttentionBackend, LoadBalancing
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.rank_shape import rank_shape
from tests.advisor.jobs import evaluator_of, parallel

from .jobs import stack_job


def test_experts_take_the_newest_release_that_is_modelled() -> None:
    stack, job = stack_job("torchtitan", model="qwen3_30b_a3b")
    assert job.config.framework_version == "0.2"
    assert stack.jobs.version("") == "0.3"
    assert job.model.moe_router_load_balancing_type is LoadBalancing.NONE


def test_cudnns_attention_comes_first_from_0_2_on() -> None:
    wanted = {"0.1": AttentionBackend.AUTO, "0.2": AttentionBackend.FUSED}
    for version, backend in wanted.items():
        _, job = stack_job("torchtitan", framework_version=version)
        assert job.model.attention_backend is backend
    _, job = stack_job("torchtitan", overrides=("model.attention_backend=flash",))
    assert job.model.attention_backend is AttentionBackend.FLASH


@pytest.mark.parametrize(("version", "left"), [("0.1", False), ("0.2", False), ("0.3", True)])
def test_float8_is_an_option_or_left_to_the_recipe(version: str, left: bool, capsys) -> None:
    """From 0.3 on no option says it."""
    options = {"framework_version": version, "precision": "fp8_current"}
    stack, job = stack_job("torchtitan", **options)
    comment = "set this in the recipe: float8 for all linear layers except the output"
    assert stack.spelling.omitted(job).startswith(comment) == left
    assert (f"    # {comment}" in stack.spelling.config_file(FULL, job)) == left
    assert ("converters" in stack.spelling.layout_flags(job)) != left
    words = ["--model", "llama3_8b", "--gpus", "8xH100", "--framework", "torchtitan"]
    version_words = ["--framework-version", version, "--precision", "fp8_current"]
    main([*words, *version_words, "--recompute", "none", "--recompute", "full"])
    assert "\nrow 1  float8: all linear layers" in capsys.readouterr().out
    _, plain = stack_job("torchtitan", framework_version=version)
    assert not stack.spelling.omitted(plain)


@pytest.mark.parametrize(
    ("tp", "ep", "etp", "rule"),
    [
        (2, 4, 2, None),
        (2, 4, 1, None),
        (4, 1, 4, None),
        (4, 2, 2, "parallelism.expert_tensor_parallel_degree"),
        (4, 1, 1, "parallelism.expert_tensor_parallel_degree"),
        (8, 1, 8, "parallelism.tensor_parallel_degree"),
    ],
)
def test_degrees(tp: int, ep: int, etp: int, rule: str | None) -> None:
    stack, job = stack_job("torchtitan", model="qwen3_30b_a3b", **parallel(tp=tp, ep=ep, etp=etp))
    assert [found.rule for found in stack.settings.check(FULL, job)] == ([rule] if rule else [])


def test_experts_are_cut_by_tp_only_without_expert_parallelism() -> None:
    degrees = {"model": "qwen3_30b_a3b", "tensor_model_parallel_size": 2}
    _, job = stack_job("torchtitan", **degrees)
    assert job.layout.expert_tensor_degree == 2
    _, job = stack_job("torchtitan", **degrees, expert_model_parallel_size=8)
    assert (job.layout.expert_tensor_degree, job.layout.expert_data_parallel_size) == (1, 1)


@pytest.mark.parametrize(("model", "all_to_all"), [("qwen3_30b_a3b", 0), ("deepseek_v2_lite", 2)])
def test_the_list_of_a_model_says_whether_all_to_alls_are_kept(model: str, all_to_all: int) -> None:
    stack, job = stack_job("torchtitan", model=model, expert_model_parallel_size=8)
    shape, kind = rank_shape(job), job.model.layer_kinds[-1]
    (segment,) = stack.memory.plan(op(OpPolicy.TORCHTITAN), shape, (kind,), job).segments
    sent = {
        operator.name
        for operator in transformer_layer(shape, kind)
        if any(c.kind is CollectiveKind.ALL_TO_ALL for c in operator.forward_collectives)
    }
    assert len(sent) == 2
    assert len(sent & segment.runs[0].keeps) == all_to_all
    assert "router.gate" not in segment.runs[0].keeps


@pytest.mark.parametrize("options", [{"model": "qwen3_30b_a3b"}, {"tensor_model_parallel_size": 2}])
def test_a_budget_says_nothing_of_experts_and_tp(options: dict[str, Any]) -> None:
    stack, job = stack_job("torchtitan", **options)
    (found,) = stack.settings.check(stack.settings.parse("budget:0.5"), job)
    assert found.rule == "budget.unknown_graph"


def test_asynchronous_tp_runs_collectives_during_gemms() -> None:
    """torch's micro_pipeline_tp fuses a gather with the GEMMs that read it and a scatter with the
    one before it, and back those whose gradient is no sum of several."""
    compiled, overlap = "job.torch_compile=true", "layout.tp_comm_overlap=true"
    _, job = stack_job("torchtitan", tensor_model_parallel_size=8, overrides=(compiled, overlap))
    evaluator = evaluator_of(job)
    operators = transformer_layer(evaluator.shape)
    sent = {one.name: one for one in operators if one.forward_collectives}
    overlapped_gemms = {
        "attention_norm_out.all_gather": (3, False),
        "wo_out.scattered.reduce_scatter": (1, True),
        "ffn_norm_out.all_gather": (2, False),
        "w2_out.scattered.reduce_scatter": (1, True),
    }
    assert {
        name: (len(one.overlapped_gemms), one.backward_collectives[0].overlapped)
        for name, one in sent.items()
    } == overlapped_gemms
    assert all(one.forward_collectives[0].overlapped for one in sent.values())
    _, plain = stack_job("torchtitan", tensor_model_parallel_size=8, overrides=(compiled,))
    seconds = evaluator.evaluate(FULL).time_seconds.exposed_communication
    without = evaluator_of(plain).evaluate(FULL)
    assert seconds < without.time_seconds.exposed_communication
    memory = evaluator.evaluate(FULL).peak.memory_bytes
    assert memory == without.peak.memory_bytes


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.1", "--training.compile"),
        ("0.2", "--compile.enable --parallelism.enable_async_tensor_parallel"),
        ("0.3", "--compile.enable --compile.enable_async_tensor_parallel"),
    ],
)
def test_options_of_the_compiler_by_release(version: str, words: str) -> None:
    """torchtitan 0.1.0 config_manager.py, 0.2.2 config/job_config.py, 0.3.0 config/configs.py."""
    overrides = ("job.torch_compile=true", "layout.tp_comm_overlap=true")
    stack, job = stack_job(
        "torchtitan", framework_version=version, tensor_model_parallel_size=8, overrides=overrides
    )
    assert {*words.split()} <= {*stack.spelling.layout_flags(job).split()}


def test_the_loss_is_compiled_by_release_and_components() -> None:
    def reason(version: str, components: str) -> tuple[bool, list[str]]:
        overrides = ("job.torch_compile=true", f"job.compile_components={components}")
        stack, job = stack_job("torchtitan", framework_version=version, overrides=overrides)
        shape = stack.memory.shape(job, rank_shape(job))
        return shape.compiled_loss, [found.rule for found in stack.settings.check(FULL, job)]

    assert reason("0.2", "model,loss") == reason("0.1", "model,loss") == (True, [])
    assert reason("0.2", "model") == (False, [])
    assert reason("0.1", "model")[1] == ["compile.components"], "0.1 compiles it in any case"
    with pytest.raises(UserError, match="a loss that is compiled alone is not modelled"):
        reason("0.2", "loss")
    with pytest.raises(UserError, match="is torchtitan's"):
        stack_job("fsdp2", overrides=("job.compile_components=model",))
    alone = {"framework": "torchtitan", "overrides": ("job.compile_components=model",)}
    said = "job.compile_components has no effect without job.torch_compile=true"
    assert said in resolve(Request(model="llama3_8b", gpus="8xH100", **alone)).assumptions


def test_replicas_of_shards_are_read_and_cut_over_fewer_ranks(tmp_path: Path) -> None:
    """HSDP: four replicas of eight ranks hold what eight ranks would."""
    overrides = ("layout.data_parallel_replicate_size=4",)
    stack, job = stack_job("torchtitan", gpus="32xH100", global_batch_size=64, overrides=overrides)
    words = stack.spelling.layout_flags(job)
    assert "data_parallel_shard_degree=8 " in words
    script = tmp_path / "t.sh"
    script.write_text(f"torchrun -m torchtitan.train {words}")
    request = read_job(str(script), {"gpus": "32xH100", "model": "llama3_8b"}).request
    assert overrides[0] in request.overrides

    _, alone = stack_job("torchtitan", gpus="8xH100")
    fixed = [
        stack.memory.fixed_memory(one, rank_shape(one), *pipeline_stages(one.model, one.layout))
        for one in (job, alone)
    ]
    assert fixed[0].static == fixed[1].static
    assert fixed[0].working_set == fixed[1].working_set


@pytest.mark.parametrize(
    ("framework", "replicas", "reason"),
    [
        ("torchtitan", 3, "3 replicas must divide DP 8"),
        ("torchtitan", 8, "DDP, which is not modelled"),
        ("torchtitan", 0, "must be at least 1"),
        ("fsdp2", 8, "must divide DP 8 into groups of two or more"),
        ("deepspeed", 2, "HSDP is not modelled for deepspeed"),
    ],
)
def test_other_replicas_are_refused(framework, replicas, reason, capsys) -> None:
    request = ["--model", "llama3_8b", "--gpus", "8xH100", "--framework", framework, "--quick"]
    assert main([*request, f"layout.data_parallel_replicate_size={replicas}"]) == 2
    assert reason in capsys.readouterr().err


def test_an_all_gather_in_8_bits(tmp_path: Path) -> None:
    """Half of a layer's bytes, except its norms'; 0.3 has none."""
    overrides = ("job.precision=fp8_current", "job.fp8_param_gather=true")
    found = []
    for more in (overrides[:1], overrides):
        stack, job = stack_job("torchtitan", framework_version="0.2", overrides=more)
        (chunks,) = pipeline_stages(job.model, job.layout)
        found.append(stack.memory.fixed_memory(job, rank_shape(job), chunks).working_set)
    wide, narrow = (one.layer.forward for one in found)
    norms = 2 * 2 * 4096 * 2
    assert narrow - norms == (wide - norms) // 2
    assert found[0].embedding == found[1].embedding, "is no linear layer"
    script = tmp_path / "t.sh"
    script.write_text(f"torchrun -m torchtitan.train {stack.spelling.layout_flags(job)}")
    request = read_job(str(script), {"gpus": "8xH100", "model": "llama3_8b"}).request
    assert overrides[1] in request.overrides


def test_components_are_read_and_written(tmp_path: Path) -> None:
    overrides = ("job.torch_compile=true", "job.compile_components=model")
    stack, job = stack_job("torchtitan", framework_version="0.2", overrides=overrides)
    assert "--compile.enable --compile.components=model" in stack.spelling.layout_flags(job)
    for name, text in (
        ("t.toml", stack.spelling.config_file(FULL, job)),
        ("t.sh", f"torchrun -m torchtitan.train {stack.spelling.layout_flags(job)}"),
    ):
        (tmp_path / name).write_text(text)
        request = read_job(str(tmp_path / name), {"gpus": "8xH100", "model": "llama3_8b"}).request
        assert {*overrides} <= {*request.overrides}
    stack, job = stack_job("torchtitan", overrides=overrides)
    lines = stack.spelling.config_file(FULL, job).splitlines()
    assert "    config.compile.enable = True" in lines
    assert '    config.compile.components = ["model"]' in lines
