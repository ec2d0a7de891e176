"""FSDP2 predictions against torchtitan's published runs. No memory is fitted on them.

Memory: the runs of Llama 3.1 8B with 8K tokens, and in float8 with 32K tokens of each rank, maximum
of reserved memory (context and communicators are outside it), with expandable segments as
run_train.sh has them. Their H100 has 96 GB, of which torch sees 94.5 GiB (the H100 of GH200,
configs/hardware). Their torchtitan is of December 2024, whose loss was not compiled: with a
compiled one the runs would lie 20 GiB lower.
Throughput: the two runs on A100, of which the document does not say whether they were compiled.
Times of the others, which are fitted on, are in docs/times.md.
"""

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.dtypes import Precision
from advisor.hardware.calibration import load_calibration
from advisor.search.evaluate import Evaluator
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.published.rows import PublishedRow, torchtitan

GIB = 2**30
OUTSIDE_TORCH = ("CUDA context", "NCCL communicators")
MEMORY_TOLERANCE = 0.035
"""3.2 and 1.9 % are missing, compiled 1.6 and 0.5 %, in float8 1.3 and 0.1 %, with 32K tokens -0.1
to +0.7 %: the communication streams' caches are an estimate. Allocated peaks are held to 0.5 % in
tests/oracles/test_fsdp2.py."""
THROUGHPUT_TOLERANCE = 0.05
"""Published throughput repeats to about 5 % (results/published/README.md)."""


def _rows(gpu: str, *, compiled: bool = False, precision: str = "bf16") -> list[PublishedRow]:
    return [
        row
        for row in torchtitan()
        if row.gpu.startswith(gpu)
        and row.precision == precision
        and row.global_batch_size
        and bool(row.compile) is compiled
        and row.tensor_model_parallel_size == 1
    ]


def _evaluate(
    row: PublishedRow, spec: str, gpu: str, **layout: int
) -> tuple[Evaluator, Evaluation]:
    stack, job = stack_job(
        "torchtitan",
        gpus=f"{row.num_gpus}x{gpu}",
        framework_version="0.2",
        seq_length=row.seq_length,
        micro_batch_size=row.micro_batch_size,
        global_batch_size=row.global_batch_size or row.micro_batch_size * row.data_parallel_size,
        **layout,
    )
    job = replace(
        job,
        gpu=replace(job.gpu, memory_bytes=int(94.5 * GIB)),
        config=replace(
            job.config,
            torch_compile=bool(row.compile),
            compile_components=("model",),
            precision=Precision.BF16 if row.precision == "bf16" else Precision.FP8_CURRENT,
        ),
    )
    evaluator = Evaluator(job, load_calibration(job.gpu))
    return evaluator, evaluator.evaluate(stack.settings.parse(spec)).simulated


@pytest.mark.parametrize(
    ("compiled", "precision"), [(False, "bf16"), (True, "bf16"), (True, "float8 (nn.Linear)")]
)
def test_reserved_memory(compiled: bool, precision: str) -> None:
    rows = _rows("H100", compiled=compiled, precision=precision)
    assert [row.num_gpus for row in rows] == [8, 128]
    for row in rows:
        found = _reserved(*_evaluate(row, "op:torchtitan", "H100"))
        assert found == pytest.approx(row.peak_memory_gib, rel=MEMORY_TOLERANCE)


def test_reserved_memory_of_long_sequences() -> None:
    rows = [row for row in torchtitan() if "Table 2" in row.source_path_or_table]
    assert [row.context_parallel_size for row in rows] == [1, 2, 4, 8]
    for row in rows:
        degrees = {"context_parallel_size": row.context_parallel_size}
        found = _reserved(*_evaluate(row, "full", "H100", **degrees))
        assert found == pytest.approx(row.peak_memory_gib, rel=MEMORY_TOLERANCE)


def _reserved(evaluator: Evaluator, evaluation: Evaluation) -> float:
    """GiB that torch counts."""
    terms = evaluator.stage_detail(evaluation.setting, 0, simulated=True).reserved.terms
    outside = sum(t.num_bytes for t in terms if t.name.endswith(OUTSIDE_TORCH))
    return (evaluation.peak.peak_reserved_bytes - outside) / GIB


def test_ranks_save_as_much_as_they_did() -> None:
    """From 8 to 128 ranks the published peak falls by 15.4 GiB."""
    (few, many) = _rows("H100")
    peaks = [
        _evaluate(row, "op:torchtitan", "H100")[1].peak.peak_reserved_bytes for row in (few, many)
    ]
    assert few.peak_memory_gib
    assert many.peak_memory_gib
    measured = few.peak_memory_gib - many.peak_memory_gib
    assert (peaks[0] - peaks[1]) / GIB == pytest.approx(measured, rel=0.1)


def test_throughput_of_two_settings() -> None:
    rows = _rows("A100")
    specs = ["selective:2" if "layer" in row.recompute else "op:torchtitan" for row in rows]
    assert specs == ["selective:2", "op:torchtitan"]
    found = [_evaluate(row, spec, "A100")[1] for row, spec in zip(rows, specs, strict=True)]
    for row, evaluation in zip(rows, found, strict=True):
        predicted = evaluation.tokens_per_second_per_gpu
        assert predicted == pytest.approx(row.tokens_per_second_per_gpu, rel=THROUGHPUT_TOLERANCE)
    assert found[1].step_time_seconds < found[0].step_time_seconds
