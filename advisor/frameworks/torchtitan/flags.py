"""What to paste after torchtitan's launch command, or into its TOML file, by version.

Up to 0.2 the options are those of one data class (config/job_config.py): tyro parses them, a TOML
file sets them. From 0.3 on the configuration is Python (config/manager.py, models/*/
config_registry.py), and the kind of checkpointing a subcommand of tyro, which must come last.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from advisor.frameworks.torch.block_regimes import BlockRegime
from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.frameworks.torchtitan.options import GATHER
from advisor.job.job import Job, JobConfig, OptimizerImplementation
from advisor.job.layout import DataParallelSharding
from advisor.models.options import CpCommType

Sections = dict[str, dict[str, str | int | float | bool | list[str]]]

FLOAT8_TO_SAY: Final = (
    "set this in the recipe: float8 for all linear layers except the output (no option sets it)"
)
_SUBCOMMANDS: Final = {
    Granularity.NONE: "none",
    Granularity.FULL: "full",
    Granularity.OP: "selective",
    Granularity.BUDGET: "memory-budget",
    Granularity.BLOCKS: "none",
}
PLAN_HOOK: Final = """

from torchtitan.distributed import activation_checkpoint  # noqa: E402

PLAN = Plan()
activation_checkpoint._apply_ac_to_transformer_block = lambda block, *_, **__: PLAN.wrap(block)
"""
"""After the module of a plan: apply_ac wraps each block by that name (torchtitan 0.2.2
distributed/activation_checkpoint.py, train.py for --experimental.custom_import)."""


def mode_flags(setting: TorchSetting, version: str) -> Iterator[str]:
    """Options that give exactly `setting`, whatever the TOML file or the recipe says."""
    if version != "0.3":
        yield from _options(_mode(setting))
        return
    if setting.granularity is Granularity.BUDGET:
        yield "--compile.enable"
    yield f"activation_checkpoint:{_SUBCOMMANDS[setting.granularity]}"
    if setting.budget is not None:
        yield f"--activation_checkpoint.memory_budget={setting.budget:g}"


def job_flags(job: Job) -> Iterator[str]:
    """Batch, sequence, and how FSDP, TP and EP cut."""
    return _options(_job(job))


_CHECKPOINTS: Final = "torchtitan.distributed.activation_checkpoint"
_CLASSES: Final = {
    Granularity.FULL: "FullAC",
    Granularity.OP: "SelectiveAC",
    Granularity.BUDGET: "MemoryBudgetAC",
}


def python_module(setting: TorchSetting, job: Job) -> str:
    """The same for 0.3, whose recipes are functions (config_registry.py) that return a
    Trainer.Config with fields to set."""
    name = _CLASSES.get(setting.granularity)
    budget = "" if setting.budget is None else f"memory_budget={setting.budget:g}"
    lines = [f"from {_CHECKPOINTS} import {name}", "", ""] if name else []
    lines += ["def recompute(config):", '    """In a recipe: return recompute(llama3_8b())."""']
    for section, values in _job(job).items():
        for key, value in values.items():
            written = value if isinstance(value, bool) else json.dumps(value)
            lines.append(f"    config.{section}.{key} = {written}")
    if setting.granularity is Granularity.BUDGET:
        lines.append("    config.compile.enable = True")
    made = f"{name}.Config({budget})" if name else None
    lines.append(f"    config.activation_checkpoint = {made}")
    if not says_float8(job.config):
        lines.append(f"    # {FLOAT8_TO_SAY}")
    lines.append("    return config")
    return "\n".join(lines) + "\n"


def toml(setting: TorchSetting, job: Job) -> str:
    """The same as sections of a TOML file, which releases to 0.2 read."""
    import tomlkit

    document: dict[str, Any] = {}
    for section, values in (*_job(job).items(), *_mode(setting).items()):
        table = document
        for name in section.split("."):
            table = table.setdefault(name, {})
        table.update(values)
    return tomlkit.dumps(document)


def _options(sections: Sections) -> Iterator[str]:
    for section, values in sections.items():
        for key, value in values.items():
            written = ",".join(value) if isinstance(value, list) else value
            yield f"--{section}.{key}" + ("" if value is True else f"={written}")


def _mode(setting: TorchSetting) -> Sections:
    mode: dict[str, Any] = {"mode": str(setting.granularity)}
    match setting.granularity:
        case Granularity.SELECTIVE:
            mode["selective_ac_option"] = str(setting.num_layers)
        case Granularity.OP:
            mode = {"mode": "selective", "selective_ac_option": "op"}
        case Granularity.BUDGET:
            mode = {"mode": "memory_budget", "memory_budget": setting.budget or 0.0}
            return {"compile": {"enable": True}, "activation_checkpoint": mode}
        case Granularity.BLOCKS if every_nth(setting) is not None:
            number = every_nth(setting)
            every = {"mode": "selective", "selective_ac_option": str(number)}
            mode = {"mode": "full"} if number == 1 else every
            return {"activation_checkpoint": {**mode, "early_stop": True}}
        case Granularity.BLOCKS:
            custom: dict[str, Any] = {"custom_import": "recompute_plan"}
            return {"activation_checkpoint": {"mode": "full"}, "experimental": custom}
    return {"activation_checkpoint": mode}


def every_nth(setting: TorchSetting) -> int | None:
    """N where a plan of blocks is one checkpoint around every N-th block: 0.2 has options for that
    and for its early stop (0.2.2 config/job_config.py)."""
    full = BlockRegime(checkpointed=True)
    marks = [regime == full for regime in setting.blocks]
    if any(one.checkpointed and one != full for one in setting.blocks):
        return None
    places = range(1, len(marks) + 1)
    return next((n for n in places if marks == [place % n == 0 for place in places]), None)


def _job(job: Job) -> Sections:
    """`default` frees all groups but the head's between the passes, `never` frees none."""
    config = job.config
    layout = job.layout
    old = config.framework_version == "0.1"
    keeps = layout.data_parallel_sharding is DataParallelSharding.GRADIENTS
    degrees: dict[str, Any] = {
        "data_parallel_shard_degree": layout.data_parallel_size
        // layout.data_parallel_replicate_size,
        "fsdp_reshard_after_forward": "never" if keeps else "default",
    }
    if layout.data_parallel_replicate_size > 1:
        degrees["data_parallel_replicate_degree"] = layout.data_parallel_replicate_size
    if layout.tensor_model_parallel_size > 1:
        degrees["tensor_parallel_degree"] = layout.tensor_model_parallel_size
        if layout.tp_comm_overlap and config.framework_version != "0.3":
            degrees["enable_async_tensor_parallel"] = True
    if layout.context_parallel_size > 1:
        degrees["context_parallel_degree"] = layout.context_parallel_size
        gathers = layout.cp_comm_type is CpCommType.ALL_GATHER
        degrees["context_parallel_rotate_method"] = "allgather" if gathers else "alltoall"
    if layout.expert_model_parallel_size > 1:
        degrees["expert_parallel_degree"] = layout.expert_model_parallel_size
        degrees["expert_tensor_parallel_degree"] = layout.expert_tensor_degree
    return {
        "training": {
            "local_batch_size": config.micro_batch_size,
            "global_batch_size": config.global_batch_size,
            "seq_len": config.seq_length,
            **({"compile": True} if old and config.torch_compile else {}),
        },
        "parallelism": degrees,
        **_optimizer(config),
        **_float8(config),
        **({} if old else _compile(job)),
    }


def _compile(job: Job) -> Sections:
    """From 0.2 on; in 0.3 asynchronous TP stands there as well (0.3.0 config/configs.py)."""
    config, values = job.config, dict[str, Any]()
    if config.torch_compile:
        values["enable"] = True
        if not config.compiles_loss:
            values["components"] = list(config.compile_components)
        if job.layout.tp_comm_overlap and config.framework_version == "0.3":
            values["enable_async_tensor_parallel"] = True
    return {"compile": values} if values else {}


def says_float8(config: JobConfig) -> bool:
    """Whether options say the precision: from 0.3 on the recipe does, in Python."""
    return not config.precision.is_quantized or config.framework_version != "0.3"


def _float8(config: JobConfig) -> Sections:
    """All linear layers but the output."""
    if not config.precision.is_quantized or not says_float8(config):
        return {}
    section = "float8" if config.framework_version == "0.1" else "quantize.linear.float8"
    own: dict[str, Any] = {"filter_fqns": ["output"]}
    if config.fp8_param_gather:
        own[GATHER] = True
    return {"model": {"converters": [section]}, section: own}


def _optimizer(config: JobConfig) -> Sections:
    values: dict[str, Any] = {}
    if config.optimizer_implementation is not OptimizerImplementation.FUSED:
        values["implementation"] = str(config.optimizer_implementation)
    if config.optimizer_in_backward:
        values["early_step_in_backward"] = True
    return {"optimizer": values} if values else {}
