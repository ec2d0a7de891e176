"""Jobs as the backends run them: whose layers, with which options, in which types."""

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.base.fields import field_types, read_record
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job, Optimizer
from advisor.request.origin import changed_fields, stated_fields
from harness.backends.megatron_core.translate import as_megatron_runs
from harness.backends.native.predict import as_native
from harness.trial.store import plain
from harness.trial.trial import BATCH, AsRun, Backend, Device, Workload

BACKENDS_OWN: Final = ("op:", "budget:")
"""Settings that a backend knows and the advisor does not: run, and not ranked."""


def runs_layers_of(framework: str) -> bool:
    """Whether the backends of ours run the layers of `framework`, which are Megatron's."""
    return framework in parts_of(Framework.MEGATRON_LM).family


def check_layers(backend: Backend, framework: str) -> None:
    """UserError where `backend` runs the layers of other frameworks than `framework`."""
    if backend is not Backend.COMMAND and not runs_layers_of(framework):
        relation = f"cannot run with backend={backend}, which runs Megatron's layers"
        raise UserError("job.framework", framework, relation, "use backend=command command='…'")


def is_backends_own(text: str, framework: str) -> bool:
    """Whether the job's framework has no word for a setting that a backend of ours runs."""
    return runs_layers_of(framework) and text.startswith(BACKENDS_OWN)


def workload_of_job(job: Job, recompute: str, backend: Backend, device: Device) -> Workload:
    """`job` under a setting, as `backend` is to run it on `device`."""
    batch: dict[str, Any] = {name: getattr(job.config, name) for name in BATCH}
    return Workload(
        model=job.model,
        layout=job.layout,
        **batch,
        recompute=recompute,
        backend=backend,
        device=device,
        main_grads_dtype=grads_dtype(backend, job),
    )


def as_run(job: Job, workload: Workload) -> Job:
    """`job` with the layers and gradients that the backend runs it with."""
    if workload.backend in (Backend.MEGATRON_CORE, Backend.REHEARSAL):
        return as_megatron_runs(job, workload)
    if workload.backend is not Backend.NATIVE:
        return job
    # its gradients are accumulated in the type of the parameters, its batches hold tokens alone,
    # its optimizer's states are fp32
    names = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    fp32: dict[str, Any] = dict.fromkeys(names, DType.FP32)
    config = replace(
        job.config,
        main_grads_dtype=grads_dtype(workload.backend, job),
        create_attention_mask=False,
        copies_gradients=False,
        optimizer_cpu_offload=False,
        use_precision_aware_optimizer=False,
        optimizer=Optimizer.ADAM,
        **fp32,
    )
    return replace(job, model=as_native(workload.model), config=config)


def differences_as_run(job: Job, workload: Workload) -> AsRun:
    """`job`, which is as the backend runs it, as far as `workload` does not say it."""
    as_run = AsRun(
        model=_differing(workload.model, job.model),
        layout=_differing(workload.layout, job.layout),
        job=stated_fields(job.config, besides=field_types(Workload)),
    )
    return read_record(AsRun, plain(as_run), "as_run")


def _differing(one: Struct, other: Struct) -> dict[str, Any]:
    return {name: getattr(other, name) for name in changed_fields(one, other)}


def grads_dtype(backend: Backend, job: Job) -> DType:
    """Type in which `backend` accumulates gradients: the native one in that of the parameters."""
    return DType.BF16 if backend is Backend.NATIVE else job.config.main_grads_dtype
