"""torchtitan 0.2.2's Llama 3 on one GPU: its model, its checkpoints (apply_ac) and its precision,
the step as its train.py has it.

`amp` is what 0.2 does on one GPU: fp32 weights under autocast. `fsdp` is what 0.3 does on one GPU
(models/llama3/parallelize.py), and every rank of several GPUs: FSDP2, here on a mesh of one, with
bf16 parameters and fp32 reduction; 0.3.0 itself needs a newer torch (DataParallelMeshDims). Of the
package only the folders of the model and its distribution are read: its trainer needs data sets.
"""

import sys
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.distributed.device_mesh import init_device_mesh

import advisor
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from harness.trial.trial import Device
from research.probes.heads import bare, inside, stand_in
from research.probes.probe_case import Case, Figures
from research.probes.trainers import STEPS, StepWatch

_PACKAGE: Final = "torchtitan"
_MODES: Final = {"full": ("full", "op"), "op:torchtitan": ("selective", "op")}
"""mode and selective_ac_option; selective:N has N."""


class TitanJob(Struct, frozen=True, kw_only=True):
    """One run. recompute: as the advisor spells it. sharded: by FSDP2 on a mesh of one."""

    model: ModelSpec
    seq_length: int
    recompute: str
    sharded: bool = False

    @property
    def name(self) -> str:
        """model_layers_tokens_recompute_precision."""
        size = f"l{self.model.num_layers}_s{self.seq_length}"
        precision = "fsdp" if self.sharded else "amp"
        return f"{self.model.name}_{size}_{self.recompute.replace(':', '_')}_{precision}"


def cases(tiny: bool) -> tuple[Case, ...]:
    """Ten layers of Llama 3 8B at 8,192 tokens."""
    model, tokens, device = load_model("llama3_8b"), 8192, Device.CUDA
    model = replace(model, num_layers=10)
    if tiny:
        tokens, device = 1024, Device.CPU
        model = replace(
            model,
            num_layers=4,
            hidden_size=256,
            ffn_hidden_size=768,
            num_attention_heads=4,
            num_query_groups=2,
            kv_channels=64,
            vocab_size=2048,
        )
    settings = [
        *((name, False) for name in ("none", "op:torchtitan", "full", "selective:2")),
        *((name, True) for name in ("none", "op:torchtitan", "full")),
    ]
    jobs = [
        TitanJob(model=model, seq_length=tokens, recompute=name, sharded=sharded)
        for name, sharded in settings
    ]
    return tuple(
        Case(
            name=job.name,
            why="torchtitan's blocks and checkpoints were compared on fake tensors alone",
            predict=partial(predicted, job),
            measure=partial(measured, job, device),
            variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},  # its run_train.sh
        )
        for job in jobs
    )


def predicted(job: TitanJob) -> Figures:
    """What `advise --framework torchtitan` says of the job on one H200."""
    row = advisor.evaluate(
        job.recompute,
        model=job.model,
        gpus="1xH200",
        framework="torchtitan",
        framework_version="0.3" if job.sharded else "0.2",
        seq_length=job.seq_length,
        micro_batch_size=1,
        global_batch_size=1,
    )
    return {
        "allocated_bytes": row.peak_allocated_bytes,
        "used_bytes": row.peak_reserved_bytes,
        "step_seconds": row.step_time_seconds,
    }


def measured(job: TitanJob, device: Device) -> Figures:
    """Steps as train.py's forward_backward_step and train_step have them."""
    with TemporaryDirectory() as folder:
        if job.sharded:
            torch.distributed.init_process_group(
                "nccl" if device is Device.CUDA else "gloo",
                init_method=f"file://{folder}/meeting",
                rank=0,
                world_size=1,
            )
        model, loss_of = _built(job, device)
        parameters = [*model.parameters()]
        optimizer = torch.optim.AdamW(
            parameters, lr=8e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        watch = StepWatch(device)
        for _ in range(sum(STEPS[device])):
            optimizer.zero_grad()
            tokens = torch.randint(job.model.vocab_size, (1, job.seq_length), device=device.value)
            labels = tokens.clone()
            amp = nullcontext() if job.sharded else torch.autocast(device.value, torch.bfloat16)
            with amp:
                pred = model(tokens)
                loss = loss_of(pred, labels) / labels.numel()
            del pred
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            watch.step_ended()
        watch.close()
        figures = watch.figures()
        if job.sharded:
            torch.distributed.destroy_process_group()
        return figures


def _built(job: TitanJob, device: Device) -> tuple[Any, Any]:
    """The model on the device, checkpointed and sharded, made without memory first; the loss."""
    titan = _titan()
    spec = job.model
    arguments = titan.arguments.TransformerModelArgs(
        dim=spec.hidden_size,
        n_layers=spec.num_layers,
        n_heads=spec.num_attention_heads,
        n_kv_heads=spec.num_query_groups,
        vocab_size=spec.vocab_size,
        multiple_of=spec.ffn_hidden_size,  # 8/3 of dim times a factor, rounded up to it
        ffn_dim_multiplier=spec.ffn_hidden_size / (8 * spec.hidden_size),
        max_seq_len=job.seq_length,
    )
    with torch.device("meta"):
        model = titan.model.Transformer(arguments)
    if job.recompute != "none":
        kind, _, every = job.recompute.partition(":")
        mode, option = _MODES.get(job.recompute, (kind, every))
        config = titan.config.ActivationCheckpoint(mode=mode, selective_ac_option=option)
        saved = titan.parallelize._op_sac_save_list
        titan.parallelize.apply_ac(model, config, op_sac_save_list=saved)
    if job.sharded:
        mesh = init_device_mesh(device.value, (1,), mesh_dim_names=("fsdp",))
        titan.parallelize.apply_fsdp(
            model,
            mesh,
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.float32,
            pp_enabled=False,
        )
    model.to_empty(device=device.value)
    with torch.no_grad():
        model.init_weights()
    model.train()
    return model, titan.loss.cross_entropy_loss


class _Titan(Struct):
    """Modules of the package."""

    config: Any
    arguments: Any
    model: Any
    parallelize: Any
    loss: Any


def _titan() -> _Titan:
    """What its packages import on the way (its command line, data sets, pipelines) is left out."""
    for part in ("config", "distributed", "models", "protocols"):
        bare(_PACKAGE)
        bare(_PACKAGE, part)
    config = inside("torchtitan.config.job_config")
    vars(sys.modules["torchtitan.config"]).update(JobConfig=config.JobConfig, TORCH_DTYPE_MAP={})
    vars(sys.modules["torchtitan.distributed"]).update(ParallelDims=None)
    stand_in("torchtitan.distributed.context_parallel", apply_cp_to_attention_module=None)
    stand_in("torchtitan.distributed.tensor_parallel", maybe_enable_async_tp=None)
    protocol = inside("torchtitan.protocols.model").ModelProtocol
    stand_in("torchtitan.protocols.train_spec", ModelProtocol=protocol)
    return _Titan(
        config=config,
        arguments=inside("torchtitan.models.llama3.model.args"),
        model=inside("torchtitan.models.llama3.model.model"),
        parallelize=inside("torchtitan.models.llama3.infra.parallelize"),
        loss=inside("torchtitan.components.loss"),
    )
