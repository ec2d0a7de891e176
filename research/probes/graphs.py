"""One rank of a job under CUDA graphs: bytes and seconds before the capture and after it.

Ranks are rehearsed, alone in a process group that sends nothing (harness/rehearsal): what a graph
captures of a collective is a copy. What each kind of graphs needs: ranks/captured_rank.py.

Figures, of the first stage's first rank. eager_: before the capture, in the same process; graph_:
after it. step_seconds: by CUDA events. queue_seconds: of the host, until all passes of a step were
queued, without the optimizer, which waits for the GPU. peak_bytes: allocated at most, what the
graphs' pool holds counted whole, as the advisor counts it; peak_allocated_bytes: as torch counts
it. pool_bytes: segments of pools that are the graphs'; pool_live_bytes: of them, what tensors hold.
inputs_bytes: what the capture leaves allocated outside the pool. router, dispatch and combine
_forward_seconds: kernels of one eager step, exchanges left out; in a case of their own, as the
profiler and captures do not go well together in a process. refused: why nothing is captured.
"""

import gc
import json
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import CudaGraphImpl, Job
from advisor.layers.operators import Module
from advisor.layers.transformer import transformer_layer
from advisor.models.layer_kind import LayerKind
from advisor.models.options import TransformerImpl
from advisor.request.layout_fields import reshaped
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.time.passes import layer_passes, layer_work
from harness.backends.jobs import as_run
from harness.backends.lone_ranks import as_installed, check, require
from harness.backends.megatron_core.installed import nothing_compiled
from harness.backends.megatron_core.translate import megatron_case
from harness.rehearsal.prediction import predicted_stages, rank_seconds, reserved_alone
from harness.rehearsal.trials import check_legal, parse_asked, workload_of
from harness.trial.trial import Device, Workload
from research.probes.probe_case import Case, Figures, causes, so_far

_NONE: Final = "none"
_STAGE: Final = 0
_STEPS: Final = 5
_MODULES: Final = {Module.ROUTER: "router", Module.DISPATCH: "dispatch", Module.COMBINE: "combine"}
_COMMON: Final = (
    *("job.framework=megatron_lm", "job.framework_version=0.16"),
    *("job.transformer_engine_version=2.20", "job.expandable_segments=true"),
)
_VARIABLES: Final = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "NCCL_GRAPH_REGISTER": "0",
}
"""As most recipes have it; NCCL must not register then what graphs hold (cuda_graphs.py)."""


class _Spec(Struct, frozen=True):
    """A rank. asked: as `harness rehearse` reads it. may_fail: whether it is captured at all is the
    question; the error is then the answer."""

    name: str
    why: str
    asked: tuple[str, ...]
    graphs: CudaGraphImpl = CudaGraphImpl.TRANSFORMER_ENGINE
    scope: tuple[str, ...] = ()
    may_fail: bool = False

    def job(self) -> Job:
        """The job, with its graphs, under the release that is installed."""
        graphs = f"job.cuda_graph_impl={self.graphs}"
        scope = f"job.cuda_graph_modules=[{','.join(self.scope)}]"
        resolution = resolve(parse_asked([*self.asked, *_COMMON, graphs, scope]).request)
        layout = resolution.layout
        if resolution.borrowed and resolution.layout_fields:
            layout = reshaped(resolution.layout_fields, None, resolution.num_gpus)
        if layout is None:
            raise UserError("layout", "(none)", "must be given", "write e.g. layout=tp1_pp1_ep8")
        return as_installed(resolution.job(layout))[0]


def _workload(job: Job, device: Device) -> Workload:
    require()
    workload = workload_of(job, _NONE, device)
    check(workload)
    return workload


def _predict(spec: _Spec, device: Device) -> Figures:
    """Without graphs and with them: bytes on the job's own GPU, seconds on an H200."""
    job = spec.job()
    plain = as_run(job, _workload(job, device))
    if spec.graphs is CudaGraphImpl.NONE:
        evaluator, here = _evaluators(plain)
        return _rank("eager", evaluator, here, device) | _module_seconds(here)
    names = ("cuda_graph_impl", "cuda_graph_modules")
    config = replace(plain.config, **{name: getattr(job.config, name) for name in names})
    found: dict[str, Any] = {"refused": ""}
    try:
        check_legal(job, [_NONE])
    except UserError as error:
        found["refused"] = str(error)
    found |= _rank("eager", *_evaluators(plain), device)
    evaluator, here = _evaluators(replace(plain, config=config))
    found |= _rank("graph", evaluator, here, device)
    found["graph_pool_bytes"], found["graph_inputs_bytes"] = _pool_and_inputs(evaluator)
    return found


def _evaluators(job: Job) -> tuple[Evaluator, Evaluator]:
    here = replace(job, gpu=load_gpu("h200"))
    return tuple(Evaluator(one, load_calibration(one.gpu)) for one in (job, here))  # type: ignore[return-value]


def _rank(prefix: str, evaluator: Evaluator, here: Evaluator, device: Device) -> dict[str, Any]:
    (peaks,) = predicted_stages(evaluator, _NONE, (_STAGE,), device)
    (reserved,) = reserved_alone(evaluator, _NONE, (_STAGE,))
    found = {
        "peak_bytes": peaks.peak,
        "peak_reserved_bytes": reserved.allocated + reserved.fragmentation,
        "step_seconds": rank_seconds(here, _NONE, _STAGE),
        "queue_seconds": _queue_seconds(here),
    }
    return _named(prefix, {name: value for name, value in found.items() if value is not None})


def _pool_and_inputs(evaluator: Evaluator) -> tuple[int, int]:
    """The two that the advisor adds to one buffer: search/job_memory.py, _graphed."""
    memory, plans = evaluator.memory, evaluator.plans(evaluator.none)
    alone, chunks = memory._footprints(plans, memory._working_set)
    sides = memory._of_sides(plans, alone, chunks)
    pool = memory._peak(_STAGE, sides[0] if sides else chunks, 0)
    return pool.total, memory._graph_inputs[_STAGE]


def _layers(evaluator: Evaluator) -> list[LayerKind]:
    """Kinds of the stage's layers, each as often as a step runs it."""
    kinds = [kind for chunk in evaluator.stages[_STAGE] for kind in chunk.layers]
    return kinds * evaluator.job.num_microbatches


def _queue_seconds(evaluator: Evaluator) -> float | None:
    """Of layers' calls, embedding and head left out; None where the processor waits for results."""
    (machine, network), shape = evaluator.rates, evaluator.shape
    if machine.host is None:
        return None
    kinds = _layers(evaluator)
    work = [layer_work(shape, machine, network, kind, machine.host) for kind in kinds]
    if any(one.asks for one in work):
        return None
    return sum(each.host for one in work for each in (*one.there, *one.back))


def _module_seconds(evaluator: Evaluator) -> dict[str, float]:
    """Of experts' forward without products and exchanges; none of a dense model."""
    (machine, network), shape = evaluator.rates, evaluator.shape
    found: dict[str, float] = {}
    for kind in _layers(evaluator):
        passes = layer_passes(shape, machine, network, kind)
        for operator in transformer_layer(shape, kind):
            if operator.module in _MODULES:
                name = f"{_MODULES[operator.module]}_forward_seconds"
                found[name] = found.get(name, 0.0) + passes[operator.name][0].compute
    return found


def _measure(spec: _Spec, device: Device) -> Figures:
    """Eager steps, the capture, and the steps that replay it."""
    job = spec.job()
    workload = _workload(job, device)
    engine = as_run(job, workload).model.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    if device is Device.CUDA and spec.graphs is CudaGraphImpl.TRANSFORMER_ENGINE and not engine:
        raise UserError("transformer_engine", "", "cannot be imported: these are its graphs")
    with nothing_compiled() if device is Device.CPU else nullcontext():
        from research.probes.ranks.captured_rank import graphed_rank
    steps = _STEPS if device is Device.CUDA else 1
    found: dict[str, Any] = {"engine": engine}
    try:
        with graphed_rank(megatron_case(workload), spec.graphs, spec.scope, device) as rank:
            for _ in range(2):  # warm-up: kernels are compiled, the optimizer makes its states
                rank.step()
            found |= _named("eager", rank.times(steps) | _peaks(rank, device))
            if spec.graphs is CudaGraphImpl.NONE:
                return found | rank.profiled()
            so_far(found)
            before = _allocated(device)
            found["capture_seconds"] = rank.capture()
            rank.step()
            after = rank.times(steps) | _peaks(rank, device)
            if device is Device.CUDA:
                live, held = _pools()
                after |= {"pool_bytes": held, "pool_live_bytes": live}
                after["inputs_bytes"] = _allocated(device) - before - live
                after["peak_bytes"] += held - live
            found |= _named("graph", after) | {"refused": ""}
    except Exception as error:
        if not spec.may_fail:
            error.add_note(f"{json.dumps(found)}\n{type(error).__name__}: {error}")
            raise
        found["refused"] = "\n".join(causes(error))
    return found


def _named(prefix: str, figures: Figures) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


def _allocated(device: Device) -> int:
    gc.collect()
    return torch.cuda.memory_allocated() if device is Device.CUDA else 0


def _peaks(rank: Any, device: Device) -> dict[str, int]:
    """Of one more step; none without a GPU."""
    if device is not Device.CUDA:
        return {}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    rank.step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak_bytes": peak, "peak_allocated_bytes": peak, "peak_reserved_bytes": reserved}


def _pools() -> tuple[int, int]:
    """Bytes of the pools of graphs: what tensors hold, and all."""
    segments: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    own = [one for one in segments if tuple(one["segment_pool_id"]) != (0, 0)]
    return sum(one["allocated_size"] for one in own), sum(one["total_size"] for one in own)


_PARTS: Final = ("attn", "moe_router", "moe_preprocess")
_PADDED: Final = (
    *("model.moe_expert_capacity_factor=1.0", "model.moe_pad_expert_input_to_capacity=true"),
    "model.moe_token_dispatcher_type=alltoall",
)
_QWEN: Final = (
    *("model=qwen3_30b_a3b", "gpus=16xH100", "model.num_layers=8", "job.global_batch_size=64"),
    "layout.overlap_moe_expert_parallel_comm=false",
)
_UNFUSED: Final = (*_QWEN, "model.moe_permute_fusion=false")
_MIXTRAL: Final = (
    *("model=mixtral_8x7b", "gpus=8xH100", "layout=tp1_pp1_ep8", "model.num_layers=4"),
    "job.global_batch_size=32",
)
_SHARED: Final = (
    *("model=deepseek_v3", "gpus=128xH100", "layout=tp1_pp2_ep64", "model.num_layers=6"),
    *("layout.pipeline_model_parallel_layout=", "model.moe_layer_freq=[0]*1+[1]*5"),
    *("model.mtp_num_layers=null", "job.global_batch_size=256"),
)
_DEEPSEEK: Final = (*_SHARED, "model.moe_shared_expert_overlap=false")
_OVERLAP: Final = (*_SHARED, "model.moe_shared_expert_overlap=true")
_LLAMA: Final = (
    *("model=llama3_8b", "gpus=8xH100", "layout=tp1_pp1_cp1", "model.num_layers=6"),
    "job.global_batch_size=16",
)
_TINY: Final = (
    *("model=qwen3_30b_a3b", "gpus=4xH100", "layout=tp1_pp1_ep4", "model.num_layers=2"),
    *("model.hidden_size=64", "model.ffn_hidden_size=64", "model.num_attention_heads=4"),
    *("model.num_query_groups=2", "model.kv_channels=16", "model.moe_ffn_hidden_size=32"),
    *("model.num_moe_experts=8", "model.moe_router_topk=2", "model.vocab_size=256"),
    *("job.seq_length=64", "job.global_batch_size=8", "job.micro_batch_size=1"),
    *("layout.overlap_moe_expert_parallel_comm=false", "layout.tp_comm_overlap=false"),
)
_OFF, _ENGINE = CudaGraphImpl.NONE, CudaGraphImpl.TRANSFORMER_ENGINE
_OWN, _WHOLE = CudaGraphImpl.LOCAL, CudaGraphImpl.FULL_ITERATION
_SMALL: Final = (
    _Spec("kernels", "no graphs", _TINY, _OFF),
    _Spec("parts", "graphs of parts of layers", _TINY, _ENGINE, _PARTS),
    _Spec("layers", "graphs of layers", (*_TINY, *_PADDED), _OWN),
    _Spec("whole", "a graph of a step", (*_TINY, *_PADDED), _WHOLE),
)
_LARGE: Final = (
    _Spec("qwen_parts", "Qwen3 30B-A3B, EP 16, 8 layers, as advised", _QWEN, _ENGINE, _PARTS),
    _Spec("qwen_kernels", "no graphs: kernels of routing and permutation", _QWEN, _OFF),
    _Spec("llama_parts", "Llama 3 8B, 6 layers, all of each", _LLAMA, _ENGINE, ("attn", "mlp")),
    _Spec("deepseek_parts", "DeepSeek-V3, EP 64, stage 0 of 2", _DEEPSEEK, _ENGINE, _PARTS),
    _Spec("qwen_whole", "a whole step, experts padded", (*_QWEN, *_PADDED), _WHOLE),
    _Spec("llama_layers", "Megatron's own graphs of whole layers", _LLAMA, _OWN),
    _Spec("llama_whole", "a whole step, dense", _LLAMA, _WHOLE),
    _Spec("mixtral_parts", "Mixtral 8x7B, EP 8, 4 layers", _MIXTRAL, _ENGINE, _PARTS),
    _Spec("qwen_recipe", "its recipe's scope: without attention", _QWEN, _ENGINE, _PARTS[1:]),
    _Spec("qwen_layers", "Megatron's own graphs, experts padded", (*_QWEN, *_PADDED), _OWN),
    _Spec("deepseek_kernels", "no graphs: routing to 256 experts", _DEEPSEEK, _OFF),
    _Spec("mixtral_kernels", "no graphs: routing to 8 experts", _MIXTRAL, _OFF),
    _Spec("deepseek_shared", "shared experts' stream forks", _OVERLAP, _ENGINE, _PARTS, True),
    _Spec("qwen_unfused", "masked_select asks the GPU", _UNFUSED, _ENGINE, _PARTS, True),
    _Spec("qwen_own_parts", "0.16.1 captures GPT's layers whole", _QWEN, _OWN, _PARTS, True),
)


def cases(tiny: bool) -> tuple[Case, ...]:
    """All of them; on a CPU one of each kind, nothing captured."""
    device = Device.CPU if tiny else Device.CUDA
    return tuple(
        Case(
            name=spec.name,
            why=spec.why,
            predict=partial(_predict, spec, device),
            measure=partial(_measure, spec, device),
            variables=_VARIABLES,
            seconds=150.0,
        )
        for spec in (_SMALL if tiny else _LARGE)
    )
