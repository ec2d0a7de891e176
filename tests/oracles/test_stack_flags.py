"""What the PyTorch stacks print is read back by the parsers that will read it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Granularity,
    Modifier,
    budget,
    parse_setting,
    uniform,
    with_options,
)
from advisor.job.layout import DataParallelSharding
from advisor.plan.recompute_plan import Setting
from tests.advisor.frameworks.torch.jobs import stack_job

pytest.importorskip("torch")


def _settings(framework: str, **options: Any) -> list[tuple[Setting, Any, Any]]:
    stack, job = stack_job(framework, **options)
    return [(setting, stack, job) for setting in stack.settings.candidates(job)]


def _words(stack: Any, job: Any, setting: Setting) -> list[str]:
    layout, own = stack.spelling.layout_flags(job), stack.spelling.setting_flags(setting, job)
    return shlex.split(f"{layout} {own}")


def _titan_config(words: list[str]) -> Any:
    pytest.importorskip("tyro")
    from .stacks.titan import import_titan

    return import_titan("config.manager").ConfigManager().parse_args(words)


def _trainer(words: list[str]) -> Any:
    transformers = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_args_into_dataclasses(
        [*words, *shlex.split("--output_dir out --use_cpu True")]
    )
    return read


@pytest.mark.parametrize("sharding", ["full", "gradients"])
def test_torchtitan_reads_every_setting(sharding: str, tmp_path: Path) -> None:
    override = (f"layout.data_parallel_sharding={sharding}",)
    found = _settings("torchtitan", framework_version="0.2", overrides=override)
    extra = [(budget(0.25), *found[0][1:])]
    for setting, stack, job in found + extra:
        config = _titan_config(_words(stack, job, setting))
        if sharding == "gradients":
            file = tmp_path / "train.toml"
            file.write_text(stack.spelling.config_file(setting, job))
            from_file = _titan_config([f"--job.config_file={file}"])
            assert from_file == replace(config, job=replace(config.job, config_file=str(file)))
        read = config.activation_checkpoint
        modes = {Granularity.OP: "selective", Granularity.BUDGET: "memory_budget"}
        assert read.mode == modes.get(setting.granularity, setting.granularity)
        if setting.granularity is Granularity.SELECTIVE:
            assert read.selective_ac_option == str(setting.num_layers)
        if setting.granularity is Granularity.OP:
            assert read.selective_ac_option == "op"
        if setting.granularity is Granularity.BUDGET:
            assert config.compile.enable
            assert read.memory_budget == 0.25
        training = config.training
        assert (training.local_batch_size, training.global_batch_size) == (2, 16)
        assert training.seq_len == 8192
        assert config.parallelism.data_parallel_shard_degree == 8
        never = sharding == "gradients"
        assert config.parallelism.fsdp_reshard_after_forward == ("never" if never else "default")


@pytest.mark.parametrize(
    ("layout", "etp"),
    [
        ({"expert_model_parallel_size": 8}, 1),
        ({}, 1),
        ({"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 2}, 2),
    ],
)
def test_torchtitan_reads_tensor_and_expert_parallelism(layout, etp, tmp_path) -> None:
    """From the command line and from the file; ParallelDims, which asserts, takes the degrees."""
    stack, job = stack_job(
        "torchtitan", model="qwen3_30b_a3b", tensor_model_parallel_size=2, **layout
    )
    assert not stack.settings.check(FULL, job)
    ep = layout.get("expert_model_parallel_size", 1)
    config = _titan_config(shlex.split(stack.spelling.layout_flags(job)))
    file = tmp_path / "train.toml"
    file.write_text(stack.spelling.config_file(FULL, job))
    from .stacks.titan import import_titan

    dims = import_titan("distributed.parallel_dims").ParallelDims
    for one in (config, _titan_config([f"--job.config_file={file}"])):
        read = one.parallelism
        assert (read.data_parallel_shard_degree, read.tensor_parallel_degree) == (4, 2)
        assert (read.expert_parallel_degree, read.expert_tensor_parallel_degree) == (ep, etp)
        dims(dp_replicate=1, dp_shard=4, cp=1, tp=2, pp=1, ep=ep, etp=etp, world_size=8)


@pytest.mark.parametrize("sharding", list(DataParallelSharding))
def test_deepspeed_reads_every_configuration(sharding: DataParallelSharding) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    override = (f"layout.data_parallel_sharding={sharding}",)
    for setting, stack, job in _settings("deepspeed", gpus="1xH200", overrides=override):
        written = json.loads(stack.spelling.setting_flags(setting, job))
        config = DeepSpeedConfig(written)
        assert config.train_batch_size == 16
        assert config.train_micro_batch_size_per_gpu == 2
        assert config.gradient_accumulation_steps == 8
        assert config.bfloat16_config.enabled
        assert config.zero_config.stage == list(DataParallelSharding).index(sharding)
        section = config.activation_checkpointing_config
        whole = setting.granularity is Granularity.FULL
        assert section.number_checkpoints == (32 if whole else None)
        assert section.cpu_checkpointing == setting.offloads
        assert not section.partition_activations
        piped = setting.granularity is Granularity.UNIFORM
        interval = config.pipeline["activation_checkpoint_interval"]
        assert interval == (setting.num_layers if piped else 0)


def test_deepspeed_reads_options_and_offloading() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    offload = (
        "job.optimizer_cpu_offload=true",
        "job.param_cpu_offload=true",
        "job.optimizer_offload_fraction=0.25",
    )
    stack, job = stack_job("deepspeed", gpus="1xH200", overrides=offload)
    names = [option for option in Modifier if option is not Modifier.OFFLOAD]
    setting = with_options(FULL, *names)
    assert not stack.settings.check(setting, job)
    config = DeepSpeedConfig(json.loads(stack.spelling.config_file(setting, job)))
    section = config.activation_checkpointing_config
    assert all(getattr(section, name) for name in names)
    zero = config.zero_config
    assert (zero.offload_optimizer.device, zero.offload_param.device) == ("cpu", "cpu")
    assert zero.offload_optimizer.ratio == 0.25
    piped = with_options(uniform(3), Modifier.CPU_CHECKPOINTING)
    written = json.loads(stack.spelling.setting_flags(piped, job))
    assert written["activation_checkpointing"]["number_checkpoints"] == 11  # ceil(32 / 3)


def test_trainer_reads_a_deepspeed_file() -> None:
    pytest.importorskip("deepspeed")
    override = ("model.transformer_impl=transformers",)
    stack, job = stack_job("deepspeed", gpus="1xH200", overrides=override)
    words = stack.spelling.setting_flags(FULL, job)
    batch = "--per_device_train_batch_size 2 --gradient_accumulation_steps 8"
    with pytest.warns(FutureWarning):  # the old name, which 4.x and 5.x both read
        read = _trainer(shlex.split(f"{words} --bf16 True {batch}"))
    assert read.activation_checkpointing
    assert read.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert read.hf_deepspeed_config.get_value("zero_optimization.stage") == 3


@pytest.mark.parametrize("spec", ["none", "full", "full+offload"])
def test_accelerate_reads_its_file(spec: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    stack, job = stack_job("huggingface")
    file = tmp_path / "accelerate.yaml"
    file.write_text(stack.spelling.config_file(parse_setting(spec), job))
    read = load_config_from_file(str(file))
    assert (read.num_processes, str(read.mixed_precision)) == (8, "bf16")
    fsdp = read.fsdp_config
    assert fsdp["fsdp_version"] == 2
    assert fsdp["fsdp_reshard_after_forward"] is True
    assert fsdp["fsdp_activation_checkpointing"] == (spec != "none")
    assert fsdp["fsdp_activation_checkpointing_offload"] == (spec == "full+offload")


def test_trainer_reads_sync_each_batch() -> None:
    """Of the accelerator's configuration, which Trainer asks for it before each microbatch."""
    stack, job = stack_job("huggingface", overrides=("job.sync_each_batch=true",), gpus="1xH200")
    read = _trainer(shlex.split(stack.spelling.layout_flags(job)))
    assert read.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}


@pytest.mark.parametrize("gpus", ["1xH200", "8xH100"])
def test_transformers_reads_every_setting(gpus: str) -> None:
    pytest.importorskip("accelerate")
    for setting, stack, job in _settings("huggingface", gpus=gpus):
        read = _trainer(_words(stack, job, setting))
        assert read.bf16
        assert read.per_device_train_batch_size == 2
        assert read.gradient_accumulation_steps * 2 * job.num_gpus == 16
        assert read.activation_checkpointing == (setting != NONE)
        kwargs = read.activation_checkpointing_kwargs or {}
        assert kwargs.get("every_n_layers") == setting.num_layers
        assert kwargs.get("offload", False) == setting.offloads
        if job.num_gpus > 1:
            assert read.fsdp_config["reshard_after_forward"] is True


def _ran(text: str, model: Any, more: Mapping[str, Any] | None = None) -> Any:
    """The model that pasted statements leave."""
    return _run(text, model, more)["model"]


def _run(text: str, model: Any, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What pasted statements leave, with `more` names; FSDP1 would look for a GPU."""
    import torch
    from torch.distributed import fsdp
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
    from torch.distributed.fsdp.wrap import CustomPolicy
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torch.utils import checkpoint

    names = {"torch": torch, "model": model, "blocks": list(model.layers), "partial": partial}
    for module in (checkpoint, wrappers, fsdp):
        names |= {name: value for name, value in vars(module).items() if name[0] != "_"}
    flat = partial(fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"))
    names |= {"CustomPolicy": CustomPolicy, "FullyShardedDataParallel": flat}
    names["_apply_optimizer_in_backward"] = _apply_optimizer_in_backward
    scope: dict[str, Any] = {**names, **(more or {})}
    exec(text, scope)
    return scope


def test_the_python_runs() -> None:
    from torch import nn
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
    from torch.distributed.fsdp import FSDPModule

    from .stacks.fsdp import fake_ranks

    for setting, stack, job in _settings("fsdp2"):
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
        with fake_ranks():
            _ran(stack.spelling.setting_flags(setting, job), model)
        kind = wrappers.OffloadWrapper if setting.offloads else wrappers.CheckpointWrapper
        wrapped = [isinstance(block, kind) for block in model.layers]
        every = setting.num_layers or 1
        wraps = setting.granularity not in (Granularity.NONE, Granularity.SEQUENTIAL)
        expected = [wraps and (k + 1) % every == 0 for k in range(8)]
        assert wrapped == expected, setting.spec
        assert all(isinstance(module, FSDPModule) for module in (*model.layers, model))


def _small_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    return transformers.LlamaModel(transformers.LlamaConfig(**sizes, **heads))


@pytest.mark.parametrize("spec", ["none", "full", "selective:2", "op:save_matmul", "budget:0.5"])
def test_the_python_compiles_and_chooses_the_attention(spec: str, monkeypatch) -> None:
    """A step of transformers' own layers; dynamo with its quickest backend."""
    import torch
    import torch._functorch.config as functorch

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    kernels = ("job.torch_compile=true", "job.attn_implementation=eager")
    layers = ("model.transformer_impl=transformers",)
    stack, job = stack_job("fsdp2", gpus="1xH200", overrides=(*kernels, *layers))
    setting = parse_setting(spec)
    assert not stack.settings.check(setting, job)
    torch._dynamo.reset()
    with functorch.patch(activation_memory_budget=1.0):
        model = _ran(stack.spelling.setting_flags(setting, job), _small_llama())
        assert functorch.activation_memory_budget == (setting.budget or 1.0)
    assert model.config._attn_implementation == "eager"
    assert all(block._compiled_call_impl is not None for block in model.layers)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model(torch.arange(8)[None], use_cache=False).last_hidden_state.sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    assert all(parameter.grad is not None for parameter in model.parameters())
    if setting.budget is None:
        plain_stack, plain = stack_job("fsdp2", gpus="1xH200", overrides=layers)
        model = _ran(plain_stack.spelling.setting_flags(setting, plain), _small_llama())
        assert model.config._attn_implementation == "sdpa"
        assert model.layers[0]._compiled_call_impl is None


@pytest.mark.parametrize(
    ("sharding", "replicas", "strategy"),
    [
        ("full", 1, "FULL_SHARD"),
        ("gradients", 1, "SHARD_GRAD_OP"),
        ("full", 2, "HYBRID_SHARD"),
        ("gradients", 2, "_HYBRID_SHARD_ZERO2"),
    ],
)
def test_the_python_shards_flat_parameters(sharding: str, replicas: int, strategy: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from .stacks.fsdp import fake_ranks

    mesh = {"init_device_mesh": lambda _, *sizes, **named: init_device_mesh("cpu", *sizes, **named)}
    overrides = (
        f"layout.data_parallel_sharding={sharding}",
        "job.flat_parameters=true",
        f"layout.data_parallel_replicate_size={replicas}",
    )
    stack, job = stack_job("fsdp2", overrides=(*overrides, "model.transformer_impl=transformers"))
    with fake_ranks():
        model = _ran(stack.spelling.setting_flags(FULL, job), _small_llama(), mesh)
        assert isinstance(model, FullyShardedDataParallel)
        assert all(isinstance(block, FullyShardedDataParallel) for block in model.layers)
        wrapped = [type(block._fsdp_wrapped_module).__name__ for block in model.layers]
        assert wrapped == ["CheckpointWrapper"] * 4
        assert model.sharding_strategy is ShardingStrategy[strategy]
        own = (*overrides[::2], "model.transformer_impl=transformers")
        stack, job = stack_job("fsdp2", overrides=own)
        model = _ran(stack.spelling.setting_flags(FULL, job), _small_llama(), mesh)
        ranks = model._get_fsdp_state()._fsdp_param_group.mesh_info.mesh
        assert tuple(ranks.shape) == ((replicas, 4) if replicas > 1 else (8,))


@pytest.mark.parametrize(
    ("override", "kernels"),
    [
        ("job.optimizer_implementation=foreach", {"foreach": True}),
        ("job.optimizer_implementation=for-loop", {"foreach": False}),
        ("job.optimizer_in_backward=true", {"fused": True}),
    ],
)
def test_the_python_makes_the_optimizer(override: str, kernels: dict[str, bool]) -> None:
    """And the weights' type; a step runs."""
    import torch

    types = ("model.transformer_impl=transformers", "job.weights_dtype=bf16")
    stack, job = stack_job("fsdp2", gpus="1xH200", overrides=(override, *types))
    model, made = _small_llama(), []
    patched = partial(_keep, torch.optim.AdamW, made)
    scope = {"lr": 0.1, "AdamW": patched}
    text = stack.spelling.setting_flags(FULL, job).replace("torch.optim.AdamW", "AdamW")
    model = _ran(text, model, scope)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    before = model.norm.weight.clone()
    model(torch.arange(8)[None], use_cache=False).last_hidden_state.sum().backward()
    for optimizer in made:
        assert {name: optimizer.defaults[name] for name in kernels} == kernels
        if "in_backward" not in override:
            optimizer.step()
    assert made
    assert not torch.equal(model.norm.weight, before)


def _keep(kind: Any, made: list[Any], *arguments: Any, **options: Any) -> Any:
    made.append(kind(*arguments, **options))
    return made[-1]


def test_the_python_names_other_libraries() -> None:
    for override, text in (
        ("job.optimizer=adamw_8bit", "bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)"),
        ("job.optimizer=adamw_torch_4bit", "torchao.optim.AdamW4bit(model.parameters(), lr=lr)"),
        ("job.use_liger_kernel=true", "_apply_liger_kernel_to_instance(model=model)"),
    ):
        overrides = (override, "model.transformer_impl=transformers")
        stack, job = stack_job("fsdp2", gpus="1xH200", overrides=overrides)
        assert text in stack.spelling.setting_flags(NONE, job)


def test_what_deepspeeds_file_cannot_say_stands_next_to_it() -> None:
    """A call of the engine; for transformers' layers options of a Trainer and of TRL."""
    kernels = ("job.torch_compile=true", "job.attn_implementation=eager")
    stack, job = stack_job("deepspeed", overrides=kernels[:1])
    calls = []
    engine = SimpleNamespace(compile=lambda: calls.append("compiled"))
    exec(stack.spelling.layout_flags(job), {"engine": engine})
    assert calls == ["compiled"]
    json.loads(stack.spelling.setting_flags(FULL, job))
    assert stack.spelling.assumed_flags(stack_job("deepspeed")[1]) == ""
    transformers = pytest.importorskip("transformers")

    @dataclass
    class Model:
        attn_implementation: str | None = None

    for framework in ("deepspeed", "huggingface"):
        overrides = (*kernels, "model.transformer_impl=transformers")
        stack, job = stack_job(framework, gpus="1xH100", overrides=overrides)
        words = shlex.split(stack.spelling.layout_flags(job))
        parser = transformers.HfArgumentParser((Model, transformers.TrainingArguments))
        read = parser.parse_known_args(["--output_dir", "x", *words])[0]
        assert (read.attn_implementation, read.torch_compile) == ("eager", True)
        (note,) = [
            text for text in stack.settings.notes(FULL, job) if "attn_implementation" in text
        ]
        assert 'from_pretrained(..., attn_implementation="eager")' in note


def test_accelerates_file_compiles(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    stack, job = stack_job("huggingface", overrides=("job.torch_compile=true",))
    file = tmp_path / "accelerate.yaml"
    file.write_text(stack.spelling.config_file(FULL, job))
    assert load_config_from_file(str(file)).dynamo_config == {"dynamo_backend": "INDUCTOR"}


def test_torchtitan_reads_float8_compile_and_the_optimizer(tmp_path: Path) -> None:
    overrides = (
        *("job.precision=fp8_current", "job.torch_compile=true"),
        *("job.optimizer_implementation=foreach", "job.optimizer_in_backward=true"),
    )
    stack, job = stack_job(
        "torchtitan", framework_version="0.2", overrides=overrides, global_batch_size=None
    )
    file = tmp_path / "train.toml"
    file.write_text(stack.spelling.config_file(NONE, job))
    for words in (_words(stack, job, NONE), [f"--job.config_file={file}"]):
        config = _titan_config(words)
        assert config.model.converters == ["quantize.linear.float8"]
        assert config.quantize.linear.float8.filter_fqns == ["output"]
        assert config.compile.enable
        assert config.optimizer.implementation == "foreach"
        assert config.optimizer.early_step_in_backward


def test_trainer_reads_the_optimizer_and_the_kernels() -> None:
    transformers = pytest.importorskip("transformers")
    for overrides, expected in (
        (("job.optimizer=adamw_8bit",), {"optim": "adamw_8bit"}),
        (("job.optimizer_implementation=foreach",), {"optim": "adamw_torch"}),
        (("job.torch_compile=true",), {"torch_compile": True}),
        (("job.use_liger_kernel=true",), {"use_liger_kernel": True}),
    ):
        stack, job = stack_job("huggingface", gpus="1xH100", overrides=overrides)
        words = shlex.split(stack.spelling.layout_flags(job))
        parser = transformers.HfArgumentParser(transformers.TrainingArguments)
        given = {action.dest: action for action in parser._actions}
        read = parser.parse_known_args(["--output_dir", "x", *words])[0]
        for name, value in expected.items():
            assert name in given
            assert str(getattr(read, name)) == str(value)


def test_context_parallelism_of_the_python_runs() -> None:
    """Meshes of a fake group of eight; `around_step` is entered around each step."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention

    from .stacks.fsdp import fake_ranks

    stack, job = stack_job("fsdp2", context_parallel_size=4, overrides=("layout.cp_comm_type=p2p",))
    names = {
        "init_device_mesh": lambda _, *sizes, **named: init_device_mesh("cpu", *sizes, **named),
        "set_rotate_method": _attention.set_rotate_method,
        "context_parallel": context_parallel,
        "tokens": torch.zeros(2, 64, dtype=torch.int64),
        "labels": torch.zeros(2, 64, dtype=torch.int64),
    }
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
    before = _attention._cp_options.rotate_method
    try:
        with fake_ranks():
            scope = _run(stack.spelling.setting_flags(FULL, job), model, names)
            assert scope["both"].size() == 8
            assert _attention._cp_options.rotate_method is _attention._RotateMethod.ALL_TO_ALL
            with scope["around_step"]():
                assert names["tokens"].shape == (2, 64 // 4)
    finally:
        _attention._cp_options.rotate_method = before
    assert all(isinstance(module, FSDPModule) for module in (*model.layers, model))


@pytest.mark.parametrize(("framework", "cp", "sp"), [("huggingface", 4, 1), ("deepspeed", 1, 4)])
def test_accelerate_reads_context_parallelism(framework, cp, sp, monkeypatch) -> None:
    accelerate = pytest.importorskip("accelerate")
    face = ("model.transformer_impl=transformers",)
    stack, job = stack_job(framework, context_parallel_size=4, overrides=face)
    for pair in stack.spelling.environment(FULL, job):
        monkeypatch.setenv(*pair.split("=", 1))
    read = accelerate.ParallelismConfig()
    assert (read.cp_size, read.sp_size, read.dp_shard_size) == (cp, sp, 2)
    assert read.total_size == job.num_gpus
    if sp > 1:
        assert read.sp_handler.sp_attn_implementation == "sdpa"
    else:
        assert read.cp_handler.cp_comm_strategy == "allgather"


def test_torchtitan_reads_context_parallelism() -> None:
    stack, job = stack_job("torchtitan", framework_version="0.2", context_parallel_size=4)
    read = _titan_config(_words(stack, job, FULL)).parallelism
    assert (read.context_parallel_degree, read.data_parallel_shard_degree) == (4, 2)
    assert read.context_parallel_rotate_method == "allgather"
