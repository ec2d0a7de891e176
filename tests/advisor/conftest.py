"""A synthetic answer made of the real types: Llama-3 70B on 32 GPUs, with invented figures.

The figures are round on purpose, so that a test can write down what a report must show.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from advisor.answer.answer import (
    Answer,
    CalibrationNote,
    MemoryLine,
    RankedEvaluation,
    Rejection,
    Remedy,
    TimeLine,
)
from advisor.answer.evaluation import (
    Evaluation,
    EvaluationDetail,
    MemoryBreakdown,
    Simulation,
    StageMemory,
    TimeBreakdown,
)
from advisor.base.units import GIB
from advisor.frameworks.megatron.setting import NONE, RecomputeSetting, parse_setting
from advisor.hardware.calibration import Calibration, Provenance
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.layer_kind import DENSE, LayerKind
from tests.advisor.jobs import job_config, parallel
from tests.advisor.toys import H100, toy_model

BUDGET = 77 * GIB
CALIBRATION = Calibration(
    name="h100",
    provenance=Provenance.PUBLISHED,
    gemm_efficiency=0.6,
    fp8_gemm_efficiency=0.5,
    attention_forward_efficiency=0.5,
    attention_backward_efficiency=0.4,
    bandwidth_efficiency=0.8,
    nvlink_efficiency=0.7,
    internode_efficiency=0.8,
    hidden_fraction=0.5,
    kernel_seconds=4e-6,
    collective_seconds=2e-5,
    step_seconds=0.01,
    step_time_error=0.08,
)
MODEL = toy_model(
    80, 8192, 28672, 64, 8, name="llama3_70b", vocab_size=128256, max_position_embeddings=8192
)
LAYOUT = ParallelLayout(**parallel(tp=4, sp=True, pp=4, vpp=5, dp=2))
CONFIG = job_config(4096, 1, 32, framework="megatron_lm")
JOB = Job(model=MODEL, layout=LAYOUT, config=CONFIG, gpu=H100, num_gpus=32)

MakeEvaluation = Callable[..., Evaluation]
MakeAdvice = Callable[..., Answer]


def evaluation(
    spec: str | RecomputeSetting,
    activations_gib: int,
    recompute_seconds: float = 0.0,
    probability: float = 0.97,
    job: Job = JOB,
    saved: dict[LayerKind, int] | None = None,
) -> Evaluation:
    """Weights 9, gradients 18, optimizer 13, transient 2, overhead 3 GiB, and the activations;
    stage s has 4 GiB less of them for each s. A step without recompute takes 8 s."""
    setting = parse_setting(spec) if isinstance(spec, str) else spec
    stages = tuple(_stage(s, max(activations_gib - 4 * s, 0)) for s in range(4))
    time = TimeBreakdown(
        forward=2.5,
        backward=4.25,
        recompute=recompute_seconds,
        exposed_communication=0.5,
        pipeline_bubble=0.5,
        optimizer=0.25,
    )
    model_flops = 8.0 * 400e12 * 32

    def look() -> EvaluationDetail:
        return EvaluationDetail(
            stages=stages,
            needs=tuple((float(stage.peak_reserved_bytes), 0.0) for stage in stages),
            saved_bytes_per_layer=saved or {DENSE: 300 * 2**20},
            hardware_flops_per_step=model_flops * (1 + recompute_seconds / 10),
        )

    return Evaluation(
        job=job,
        setting=setting,
        calibration=CALIBRATION,
        peak_reserved_bytes=stages[0].peak_reserved_bytes,
        usual_reserved_bytes=stages[0].peak_reserved_bytes,
        time_seconds=time,
        step_time_low_seconds=time.total * 0.92,
        step_time_high_seconds=time.total * 1.08,
        fit_probability=probability,
        budget_bytes=BUDGET,
        model_flops_per_step=model_flops,
        recompute_overhead=recompute_seconds / 8.0,
        look=look,
        simulate=lambda: Simulation(
            peak_reserved_bytes=stages[0].peak_reserved_bytes,
            fit_probability=probability,
            requests=0,
            look=look,
        ),
        likely_with=lambda share: probability,
        requests=0,
    )


def _stage(stage: int, activations_gib: int) -> StageMemory:
    memory = MemoryBreakdown(
        weights=9 * GIB,
        gradients=18 * GIB,
        optimizer=13 * GIB,
        activations=activations_gib * GIB,
        transient=2 * GIB,
        overhead=3 * GIB,
    )
    return StageMemory(
        stage=stage,
        peak_allocated_bytes=memory.total - 3 * GIB,
        peak_reserved_bytes=memory.total,
        memory_bytes=memory,
        in_flight_microbatches=4.6 - stage,
        peak_phase="backward of microbatch 1",
    )


def advice(*evaluations: Evaluation, **changes: object) -> Answer:
    """An answer whose candidates are `evaluations` in this order; all are Pareto."""
    candidates = tuple(
        RankedEvaluation(rank=rank, evaluation=item)
        for rank, item in enumerate(evaluations, start=1)
    )
    whole = Answer(
        job=JOB,
        assumptions=("preset llama3_70b_32xh100", "flash attention", "dropout 0"),
        calibration=CalibrationNote(
            name="h100", provenance=Provenance.PUBLISHED, summary="step time ±8 %"
        ),
        evaluated=64,
        candidates=candidates,
        rejected=(REJECTION,),
        remedies=(),
        recipe="llama3_70b_32xh100",
        recipe_framework="megatron_lm",
    )
    return replace(whole, **changes)


REJECTION = Rejection(
    setting=parse_setting("selective:moe_act"),
    rule="moe_act_needs_experts",
    reason="moe_act acts on grouped experts, and the model has none",
    fix="leave moe_act out.",
    source="megatron-core 0.19.2 transformer_config.py:1785",
)
VPP_REMEDY = Remedy(
    change="VPP 10 instead of 5",
    effect_bytes=-3 * GIB // 2,
    effect_seconds=-0.08,
    why="less warm-up in flight",
)


@pytest.fixture
def make_evaluation() -> MakeEvaluation:
    return evaluation


@pytest.fixture
def make_advice() -> MakeAdvice:
    return advice


@pytest.fixture
def tight() -> Answer:
    """`none` needs 85 GiB of 77; selective mlp is the choice; core_attn buys nothing."""
    whole = advice(
        evaluation("selective:mlp", 21, 1.3),
        evaluation("full:block:2", 24, 1.6, 0.9),
        evaluation("full:uniform:1", 4, 2.4, 0.999),
        evaluation(NONE, 40, 0.0, 0.0),
        evaluation("selective:core_attn", 40, 0.3, 0.0),
        remedies=(),
    )
    useless = replace(
        whole.candidates[4],
        dominated_by=4,
        notes=("buys nothing: flash attention keeps no scores",),
    )
    beaten = replace(whole.candidates[1], dominated_by=1)
    first, _, *middle, _ = whole.candidates
    return replace(whole, candidates=(first, beaten, *middle, useless))


@pytest.fixture
def roomy() -> Answer:
    """`none` fits with 12 GiB to spare."""
    return advice(evaluation(NONE, 20), evaluation("selective:mlp", 10, 1.3, 0.999))


@pytest.fixture
def hopeless() -> Answer:
    """Nothing fits: the nearest is 1.5 GiB over."""
    return advice(
        evaluation("full:uniform:1", 34, 2.4, 0.2),
        evaluation(NONE, 90, 0.0, 0.0),
        remedies=(VPP_REMEDY, replace(VPP_REMEDY, change="micro batch 1 instead of 2")),
    )


@pytest.fixture
def layouts() -> Answer:
    """A search over layouts, with a long setting and context parallelism."""
    other = ParallelLayout(**parallel(tp=2, sp=True, cp=2, pp=8, dp=1))
    long = "selective:core_attn,mlp,layernorm,moe_act+offload=core_attn,attn_proj"
    return advice(
        evaluation(NONE, 20),
        evaluation(parse_setting(long), 12, 0.4, job=replace(JOB, layout=other)),
        evaluation("full:block:20+distribute_saved_activations", 3, 2.2),
    )


@pytest.fixture
def explained(tight: Answer) -> tuple[Evaluation, tuple[MemoryLine, ...], tuple[TimeLine, ...]]:
    """The best candidate of `tight` with lines that sum to its peak and its step time."""
    best = tight.candidates[0].evaluation
    source = "megatron-core 0.16.1 param_and_grad_buffer.py"
    memory = (
        _line("activations", "linear_fc1 input", "[1024, 1, 8192]", 7 * GIB // 4, 4, source),
        _line("activations", "linear_qkv input", "[1024, 1, 8192]", 7 * GIB // 2, 4, ""),
        _line("overhead", "CUDA context", "", GIB, 1, "measured"),
        _line("overhead", "communicators", "", 2 * GIB, 1, "measured"),
        _line("weights", "layer weights", "", 9 * GIB // 16, 16, source),
        _line("gradients", "main gradients, fp32", "", 18 * GIB, 1, source),
        _line("optimizer", "master weights, exp_avg, exp_avg_sq", "", 13 * GIB, 1, source),
        _line("transient", "replayed mlp", "[4096, 1, 14336]", 2 * GIB, 1, ""),
    )
    parts = best.time_seconds
    time = (
        TimeLine(phase="forward", operator="linear_fc1", seconds=1.5, bound_by="compute"),
        TimeLine(phase="forward", operator="core attention", seconds=1.0, bound_by="compute"),
        TimeLine(phase="backward", operator="all", seconds=parts.backward, bound_by="compute"),
        TimeLine(phase="recompute", operator="mlp", seconds=parts.recompute, bound_by="compute"),
        TimeLine(phase="exposed_communication", operator="p2p", seconds=0.5, bound_by="network"),
        TimeLine(phase="pipeline_bubble", operator="idle", seconds=0.5, bound_by="schedule"),
        TimeLine(phase="optimizer", operator="Adam", seconds=0.25, bound_by="memory bandwidth"),
    )
    return best, memory, time


def _line(
    component: str, name: str, shape: str, unit_bytes: int, count: float, source: str
) -> MemoryLine:
    return MemoryLine(
        component=component,
        name=name,
        shape=shape,
        unit_bytes=unit_bytes,
        count=count,
        source=source,
    )
