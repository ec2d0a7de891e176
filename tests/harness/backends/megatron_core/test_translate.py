from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import CudaGraphImpl, Job
from advisor.job.layout import ParallelLayout
from advisor.models.layer_pattern import LayerPattern
from advisor.models.options import (
    AttentionBackend,
    CpCommType,
    CrossEntropyFusion,
    SoftmaxType,
    TokenDispatcher,
    TransformerImpl,
)
from harness.backends.megatron_core.case import CoreAttention, MegatronCase
from harness.backends.megatron_core.translate import (
    as_megatron_runs,
    megatron_case,
    megatron_model,
    runs_transformer_engine,
)
from harness.trial.trial import Backend, Device
from tests.advisor.jobs import job_config, parallel
from tests.harness.backends.megatron_core.workloads import GPT, LLAMA, workload

HAS_ENGINE = "harness.backends.megatron_core.translate.has_transformer_engine"
LAYOUT = ParallelLayout(**parallel(tp=2, sp=True, pp=2, vpp=2, dp=4), overlap_param_gather=False)


def test_fields_of_one_name_are_carried_over() -> None:
    case = megatron_case(workload(layout=LAYOUT, global_batch_size=16, main_grads_dtype=DType.FP32))
    assert (case.num_layers, case.hidden_size, case.num_query_groups) == (4, 64, 2)
    assert (case.tensor_model_parallel_size, case.data_parallel_size) == (2, 4)
    assert case.virtual_pipeline_model_parallel_size == 2
    assert (case.overlap_grad_reduce, case.overlap_param_gather) == (True, False)
    assert (case.num_microbatches, case.vocab_size) == (4, 256)  # padded to 128 x TP
    assert case.grad_reduce_in_fp32
    assert not megatron_case(workload()).grad_reduce_in_fp32
    assert megatron_case(workload()).virtual_pipeline_model_parallel_size is None


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("none", (None, None, None, None)),
        ("selective", ("selective", None, None, ("core_attn",))),
        ("selective:mlp,layernorm", ("selective", None, None, ("mlp", "layernorm"))),
        ("full:block:3", ("full", "block", 3, None)),
    ],
)
def test_settings(spec: str, fields: tuple[Any, ...]) -> None:
    case = megatron_case(workload(recompute=spec))
    assert (
        case.recompute_granularity,
        case.recompute_method,
        case.recompute_num_layers,
        case.recompute_modules,
    ) == fields


def test_without_transformer_engine_the_layers_are_megatrons_own() -> None:
    asked = workload(replace(LLAMA, cross_entropy_fusion=CrossEntropyFusion.TE))
    model = megatron_model(asked)
    assert not runs_transformer_engine(asked)
    assert model.transformer_impl is TransformerImpl.LOCAL
    assert model.cross_entropy_fusion is CrossEntropyFusion.NONE
    assert not model.apply_rope_fusion
    assert not model.gradient_accumulation_fusion
    native = replace(LLAMA, cross_entropy_fusion=CrossEntropyFusion.NATIVE)
    assert megatron_model(workload(native)).cross_entropy_fusion is CrossEntropyFusion.NATIVE


def test_attention_is_a_flash_kernel_unless_asked_otherwise() -> None:
    auto = replace(LLAMA, attention_backend=AttentionBackend.AUTO)
    assert megatron_case(workload(auto)).attention is CoreAttention.FLASH
    assert megatron_model(workload(auto)).attention_backend is AttentionBackend.FLASH
    unfused = megatron_case(workload(GPT))
    assert (unfused.attention, unfused.attention_backend) == (CoreAttention.UNFUSED, "unfused")


def test_windows_and_offsets_are_for_kernels_that_know_them() -> None:
    every_second = replace(
        LLAMA,
        window_size=8,
        window_attn_skip_freq=LayerPattern(2),
        softmax_type=SoftmaxType.LEARNABLE,
    )
    case = megatron_case(workload(every_second, device=Device.FAKE))
    assert (case.window_size, case.softmax_type) == ("8,0", "learnable")
    assert case.window_attn_skip_freq == str(
        [number % 2 for number in range(1, LLAMA.num_layers + 1)]
    )
    unfused = replace(every_second, attention_backend=AttentionBackend.UNFUSED)
    assert megatron_case(workload(unfused, device=Device.CPU)).window_size == "8,0"


def test_the_job_as_it_runs_has_plain_states_and_no_mask() -> None:
    config = job_config(
        *(32, 1, 2),
        precision=Precision.FP8_CURRENT,
        cuda_graph_impl=CudaGraphImpl.LOCAL,
        use_precision_aware_optimizer=True,
        exp_avg_dtype=DType.BF16,
        optimizer_cpu_offload=True,
    )
    job = Job(model=LLAMA, layout=ParallelLayout(), config=config, gpu=load_gpu("H100"), num_gpus=1)
    run = as_megatron_runs(job, workload())
    assert run.config.precision is Precision.BF16
    assert not run.config.create_attention_mask
    assert run.config.cuda_graph_impl is CudaGraphImpl.NONE
    assert run.config.exp_avg_dtype is DType.FP32
    assert not run.config.optimizer_cpu_offload
    assert run.config.seq_length == 32
    assert run.model == megatron_model(workload())


def test_no_field_of_a_layout_is_lost() -> None:
    """Every one has its place in a case, except those refused and those of other frameworks."""
    lost = set(ParallelLayout.__struct_fields__)
    lost -= MegatronCase.option_names
    others = {"data_parallel_sharding", "data_parallel_replicate_size", "double_buffers"}
    assert lost == others
    with pytest.raises(UserError, match="must be p2p"):
        megatron_case(
            workload(layout=ParallelLayout(context_parallel_size=2, cp_comm_type=CpCommType.A2A))
        )
    uneven = ParallelLayout(
        pipeline_model_parallel_size=2, pipeline_model_parallel_layout="Et|tttL"
    )
    assert megatron_case(workload(layout=uneven)).pipeline_model_parallel_layout == "Et|tttL"


def test_offload_reaches_transformer_engine_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HAS_ENGINE, lambda: True)
    on_gpu = workload(recompute="none+cpu_offloading=2", device=Device.CUDA)
    case = megatron_case(on_gpu)
    assert (case.cpu_offloading, case.cpu_offloading_num_layers) == (True, 2)
    case = megatron_case(replace(on_gpu, recompute="none+offload=core_attn"))
    assert (case.fine_grained_activation_offloading, case.offload_modules) == (True, ("core_attn",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": Precision.FP16}, "runs bf16, or FP8 with Transformer Engine"),
        ({"precision": Precision.FP8_CURRENT}, "on a GPU"),
        ({"recompute": "op:save_matmul"}, "is not a setting of Megatron"),
        (
            {"recompute": "none+offload=core_attn"},
            (
                "fine-grained offload needs Transformer Engine and a GPU: it copies to pinned "
                "memory on CUDA streams"
            ),
        ),
        ({"recompute": "none+cpu_offloading=2"}, "cpu_offloading needs Transformer Engine"),
        ({"model": GPT, "recompute": "selective:mlp"}, "MLP with biases never ends"),
        ({"global_batch_size": 3, "micro_batch_size": 2}, "must be divisible"),
        (
            {"model": replace(LLAMA, window_size=8), "device": Device.CPU},
            "window_size = 8: is not supported",
        ),
        ({"model": replace(LLAMA, qk_l2_norm=True)}, "qk_l2_norm = true: is not supported"),
    ],
)
def test_what_does_not_run_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        megatron_case(workload(**changes))


def test_a_gpu_without_transformer_engine_runs_local_layers(monkeypatch) -> None:
    on_gpu = workload(device=Device.CUDA)
    monkeypatch.setattr(HAS_ENGINE, lambda: False)
    assert megatron_case(on_gpu).transformer_impl == "local"
    monkeypatch.setattr(HAS_ENGINE, lambda: True)
    assert megatron_model(on_gpu) == replace(LLAMA, attention_backend=AttentionBackend.FUSED)
    assert megatron_case(on_gpu).transformer_impl == "transformer_engine"
    assert not runs_transformer_engine(workload())
    current = megatron_case(replace(on_gpu, precision=Precision.FP8_CURRENT))
    assert (current.fp8, current.fp8_recipe) == ("hybrid", "tensorwise")
    assert megatron_case(on_gpu).fp8 is None


def test_kernels_that_are_installed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HAS_ENGINE, lambda: True)
    asked = workload(
        replace(LLAMA, moe_token_dispatcher_type=TokenDispatcher.FLEX), device=Device.CUDA
    )
    alone = megatron_model(asked)
    assert alone.moe_token_dispatcher_type is TokenDispatcher.ALLTOALL
    monkeypatch.setattr("harness.backends.megatron_core.translate.find_spec", lambda _: object())
    assert megatron_model(asked) == asked.model


def test_a_rank_alone_has_no_user_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HAS_ENGINE, lambda: True)
    layout = ParallelLayout(tensor_model_parallel_size=2, tp_comm_overlap=True)
    run = workload(device=Device.CUDA, layout=layout)
    assert megatron_case(run).tp_comm_overlap
    assert not megatron_case(replace(run, backend=Backend.REHEARSAL)).tp_comm_overlap
