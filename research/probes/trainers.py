"""transformers' Trainer on one GPU, as a user starts it: Qwen3 with random weights in bf16, SDPA,
fused AdamW, random tokens; full training with and without checkpoints and Liger's kernels, and LoRA
over frozen weights (peft).

Steps are Trainer's own, accelerate's autocast and the clipping of gradients among them. The
allocator's peaks are those after the warm-up; on a CPU they are counted storages of one step.
"""

from contextlib import ExitStack
from functools import partial
from importlib import import_module
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.nn.attention import SDPBackend

import advisor
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from harness.measure.memory import CudaAllocator, StorageMeter
from harness.measure.nvml import open_current_gpu
from harness.measure.timing import stopwatch
from harness.trial.trial import Device
from research.probes.heads import package
from research.probes.probe_case import Case, Figures

RANK: Final = 16
STEPS: Final = {Device.CUDA: (2, 4), Device.CPU: (1, 1)}
"""Of the warm-up, and those after it."""


class TrainerJob(Struct, frozen=True, kw_only=True):
    """One run. recompute: as the advisor spells it. micro_batches: of a step, each of `samples`
    sequences of `seq_length` tokens. liger: its kernels (package liger-kernel). lora: rank 16 in
    all linear layers but the output layer, in fp32 as peft makes them."""

    model: ModelSpec
    seq_length: int
    recompute: str = "none"
    samples: int = 1
    micro_batches: int = 1
    liger: bool = False
    lora: bool = False

    @property
    def name(self) -> str:
        """model_recompute_tokens and what is not usual."""
        recompute = self.recompute.replace(":", "")
        size = f"s{self.seq_length}b{self.samples}x{self.micro_batches}"
        kinds = ("_liger" * self.liger) + ("_lora" * self.lora)
        return f"{self.model.name.replace('.', '_')}_{recompute}_{size}{kinds}"


_SMALL: Final = load_model("qwen3_1.7b")
_FOUR: Final = load_model("qwen3_4b")
_EIGHT: Final = load_model("qwen3_8b")
_JOBS: Final = (
    TrainerJob(model=_SMALL, seq_length=8192),
    TrainerJob(model=_SMALL, seq_length=8192, liger=True),
    TrainerJob(model=_SMALL, seq_length=8192, recompute="full"),
    TrainerJob(model=_SMALL, seq_length=8192, recompute="selective:2"),
    TrainerJob(model=_EIGHT, seq_length=8192, lora=True),
    TrainerJob(model=_EIGHT, seq_length=8192, lora=True, recompute="full"),
    TrainerJob(model=_FOUR, seq_length=8192),
    TrainerJob(model=_FOUR, seq_length=8192, recompute="full", liger=True),
    TrainerJob(model=_FOUR, seq_length=4096, samples=2, micro_batches=2),
    TrainerJob(model=_SMALL, seq_length=8192, recompute="selective:2", liger=True),
    TrainerJob(model=_SMALL, seq_length=4096, samples=4, recompute="full"),
    TrainerJob(model=_EIGHT, seq_length=8192, lora=True, liger=True),
)
_WHY: Final = "allocated bytes of transformers' Trainer on one GPU are to lie within 1 %"
_WHY_LIGER: Final = "Liger's kernels are modelled from their source, and were not run"
_WHY_LORA: Final = "adapters of peft are checked layer by layer, no whole step on a GPU is"


def _small(job: TrainerJob) -> TrainerJob:
    """The same with a model that a CPU runs in seconds."""
    model = replace(
        job.model,
        name=f"tiny_{job.model.name}",
        num_layers=2,
        hidden_size=256,
        ffn_hidden_size=512,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=64,
        vocab_size=4096,
    )
    return replace(job, model=model, seq_length=128)


def cases(tiny: bool) -> tuple[Case, ...]:
    """The more valuable first."""
    device = Device.CPU if tiny else Device.CUDA
    jobs = tuple(map(_small, _JOBS[:6])) if tiny else _JOBS
    return tuple(
        Case(
            name=job.name,
            why=_WHY_LORA if job.lora else _WHY_LIGER if job.liger else _WHY,
            predict=partial(predicted, job),
            measure=partial(measured, job, device),
            seconds=120.0,
        )
        for job in jobs
    )


def predicted(job: TrainerJob) -> Figures:
    """What `advise --framework huggingface` says of the job on one H200. used_bytes: of the GPU by
    the process, CUDA's context included."""
    tuning = {"tuning.adapter": "lora", "tuning.rank": RANK} if job.lora else {}
    row = advisor.evaluate(
        job.recompute,
        model=job.model,
        gpus="1xH200",
        framework="huggingface",
        seq_length=job.seq_length,
        micro_batch_size=job.samples,
        global_batch_size=job.samples * job.micro_batches,
        overrides={"job.use_liger_kernel": job.liger, **tuning},
    )
    return {
        "allocated_bytes": row.peak_allocated_bytes,
        "used_bytes": row.peak_reserved_bytes,
        "step_seconds": row.step_time_seconds,
    }


def measured(job: TrainerJob, device: Device) -> Figures:
    """Peaks and seconds of the steps after the warm-up."""
    transformers = package("transformers")
    model = _model(job, device)
    watch = StepWatch(device)

    class Callback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.step_ended()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            watch.close()

    with TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=model,
            args=_arguments(job, device, folder),
            train_dataset=_Tokens(job, sum(STEPS[device])),
            data_collator=transformers.default_data_collator,
            callbacks=[Callback()],
        )
        del model
        trainer.train()
    return watch.figures() | {"attention": _kernel(job.model, device)}


def _kernel(model: ModelSpec, device: Device) -> str:
    """Which kernel torch's SDPA takes for such heads."""
    heads, groups, width = model.num_attention_heads, model.num_query_groups, model.kv_channels
    query, key = (
        torch.empty(1, number, 1024, width, dtype=torch.bfloat16, device=device.value)
        for number in (heads, groups)
    )
    chosen = torch._fused_sdp_choice(query, key, key, None, 0.0, True, enable_gqa=True)
    return str(SDPBackend(chosen).name)


class StepWatch:
    """Seconds of steps, and peaks of memory, from the end of the warm-up to `close`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._left = STEPS[device][0]
        self._watch = stopwatch(device)
        self._allocator: CudaAllocator | None = None
        self._meter = StorageMeter()
        self._closing = ExitStack()
        self._steps: tuple[float, ...] = ()

    def step_ended(self) -> None:
        """A step is over, the last of the warm-up or a later one counts."""
        self._left -= 1
        if self._left > 0:
            return
        if self._left == 0 and self._device is Device.CUDA:
            self._allocator = CudaAllocator()
        elif self._left == 0:
            self._meter.count_existing()
            self._closing.enter_context(self._meter.measuring())
        self._watch.mark()

    def close(self) -> None:
        """The last step is over."""
        self._closing.close()
        self._steps = self._watch.laps()

    def figures(self) -> dict[str, Any]:
        """Bytes and seconds."""
        found: dict[str, Any] = {"step_seconds": median(self._steps), "all_seconds": self._steps}
        if self._allocator is None:
            return found | {"allocated_bytes": self._meter.peak_bytes}
        gpu = open_current_gpu()
        peaks = {f"{name}_bytes": value for name, value in self._allocator.peaks().items()}
        retries = peaks.pop("allocator_retries_bytes")
        used = None if gpu is None else gpu.reading().used_bytes
        return found | peaks | {"allocator_retries": retries, "used_bytes": used}


def _arguments(job: TrainerJob, device: Device, folder: str) -> Any:
    """Those of `advise --format flags`, by the names of the installed release: 5.17 has
    gradient_checkpointing, 5.23 activation_checkpointing and the other as an alias."""
    transformers = package("transformers")
    kind, _, every = job.recompute.partition(":")
    return transformers.TrainingArguments(
        output_dir=folder,
        max_steps=sum(STEPS[device]),
        bf16=True,
        use_cpu=device is Device.CPU,
        per_device_train_batch_size=job.samples,
        gradient_accumulation_steps=job.micro_batches,
        optim="adamw_torch_fused",
        gradient_checkpointing=kind != "none",
        gradient_checkpointing_kwargs={"every_n_layers": int(every)} if every else None,
        use_liger_kernel=job.liger,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _model(job: TrainerJob, device: Device) -> Any:
    """In bf16, made on the device."""
    transformers = package("transformers")
    spec = job.model
    if job.liger:
        package("liger_kernel")
        if device is Device.CPU:  # kernels write nothing: what they are given is there all the same
            jit = import_module("triton.runtime.jit")
            jit.JITFunction.run = lambda *_, **__: None
    config = transformers.Qwen3Config(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.ffn_hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_query_groups,
        head_dim=spec.kv_channels,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=spec.share_embeddings_and_output_weights,
        use_cache=False,
    )
    with torch.device(device.value):
        made = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    if not job.lora:
        return made
    peft = package("peft")
    lora = peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(made, lora)


class _Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random sequences without padding."""

    def __init__(self, job: TrainerJob, steps: int) -> None:
        self._size, self._vocabulary = job.seq_length, job.model.vocab_size
        self._samples = job.samples * job.micro_batches * steps

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self._vocabulary, (self._size,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}
