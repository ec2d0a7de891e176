"""Bytes that CUDA graphs have beside what is kept."""

from msgspec.structs import replace

from advisor.frameworks.megatron.setting import NONE
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import CudaGraphImpl, Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.search.evaluate import Evaluator
from advisor.search.job_memory import StageDetail

JOB = Job(
    model=replace(load_model("llama3_8b"), num_layers=4),
    layout=ParallelLayout(pipeline_model_parallel_size=2, data_parallel_size=4),
    config=JobConfig(
        seq_length=4096, micro_batch_size=2, global_batch_size=32, framework="megatron_lm"
    ),
    gpu=load_gpu("H100"),
    num_gpus=8,
)


def detail(impl: CudaGraphImpl, *modules: str) -> StageDetail:
    config = replace(JOB.config, cuda_graph_impl=impl, cuda_graph_modules=modules)
    job = replace(JOB, config=config)
    return Evaluator(job, load_calibration(job.gpu)).stage_detail(NONE, 0)


def test_graphs_have_masks_of_their_own() -> None:
    """Two layers a stage, two microbatches in flight on the first, 2 x 4096 x 4096 bools each."""
    without = detail(CudaGraphImpl.NONE)
    masks = 2 * 2 * 2 * 4096 * 4096
    engine = CudaGraphImpl.TRANSFORMER_ENGINE
    for found in (detail(engine), detail(engine, "attn", "mlp")):
        assert found.reserved.allocated - without.reserved.allocated == masks
        assert found.fixed.buffers[-1].num_bytes == masks


def test_graphs_without_attention_and_megatrons_own_have_none() -> None:
    without = detail(CudaGraphImpl.NONE).reserved.allocated
    assert detail(CudaGraphImpl.TRANSFORMER_ENGINE, "mlp").reserved.allocated == without
    assert detail(CudaGraphImpl.LOCAL).reserved.allocated == without
