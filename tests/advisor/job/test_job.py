"""Relations inside one job's configuration."""

import pytest

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.job.job import Fp8Recipe, JobConfig, Optimizer


def config(**fields: object) -> JobConfig:
    return JobConfig(seq_length=32, micro_batch_size=1, global_batch_size=8, **fields)


BF16, TENSORWISE = DType.BF16, Fp8Recipe.TENSORWISE


@pytest.mark.parametrize(
    ("num_bytes", "fields"),
    [
        (10, {}),
        (10, {"main_params_dtype": DType.FP16}),
        (6, {"exp_avg_dtype": BF16, "exp_avg_sq_dtype": BF16}),
        (10, {"fp8_recipe": Fp8Recipe.DELAYED}),
        (12, {"fp8_recipe": TENSORWISE}),
        (10, {"precision": Precision.FP8_DELAYED}),
        (12, {"transformer_engine_version": "2.0"}),
        (10, {"optimizer_cpu_offload": True, "fp8_recipe": TENSORWISE}),
        (
            7,
            {
                "precision": Precision.FP8_CURRENT,
                "exp_avg_dtype": BF16,
                "exp_avg_sq_dtype": DType.FLOAT8,
            },
        ),
    ],
)
def test_optimizer_bytes_of_a_parameter(fields: dict[str, object], num_bytes: int) -> None:
    """Of an fp32 main parameter that Adam holds, it keeps what the bf16 weight lacks, 2 bytes."""
    assert config(use_precision_aware_optimizer=True, **fields).optimizer_bytes == num_bytes
    assert config().optimizer_bytes == 12


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"exp_avg_dtype": DType.BF16}, "set job.use_precision_aware_optimizer=true"),
        ({"main_params_dtype": DType.BF16, "use_precision_aware_optimizer": True}, "must be"),
        ({"fp8_param_gather": True}, "needs FP8"),
        ({"optimizer_offload_fraction": 1.5}, "must be between"),
        (
            {"precision": Precision.MXFP8, "fp8_recipe": Fp8Recipe.DELAYED},
            "does not match job.precision=mxfp8",
        ),
    ],
)
def test_types_of_the_optimizer_that_do_not_go(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        config(**fields)


def test_the_part_of_the_optimizer_on_the_host() -> None:
    aware = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    assert config().offloaded_fraction == 0.0
    assert config(**aware).offloaded_fraction == 1.0
    assert config(**aware, optimizer_offload_fraction=0.25).offloaded_fraction == 0.25


@pytest.mark.parametrize(
    ("framework", "fields", "words"),
    [
        ("megatron_lm", {"optimizer_cpu_offload": True}, "use_precision_aware_optimizer=true"),
        ("nemo", {"optimizer": Optimizer.MUON}, "is Megatron's and is not modelled for nemo"),
        ("fsdp2", {"optimizer_cpu_offload": True}, "is not modelled for fsdp2"),
        ("torchtitan", {"sync_each_batch": True}, "is an option of Accelerate"),
        ("megatron_bridge", {"param_cpu_offload": True}, "is DeepSpeed's offload_param"),
    ],
)
def test_options_that_a_framework_has_not(framework, fields, words) -> None:
    with pytest.raises(UserError, match=words):
        parts_of(framework).jobs.check_options(config(framework=framework, **fields))


@pytest.mark.parametrize("framework", ["megatron_bridge", "nemo"])
def test_only_megatron_lms_optimizer_on_the_host_must_be_the_precision_aware_one(framework) -> None:
    alone = config(framework=framework, optimizer_cpu_offload=True)
    parts_of(framework).jobs.check_options(alone)
