"""Lines in the true formats of the frameworks: their own format strings, made-up numbers. What can
run without a GPU wrote real ones: recorded/.

Sources: Megatron-LM core_r0.11 to main d98e8a64 (training.py, utils.py), Megatron Bridge main
067f987 (train_utils.py) and 0.3.1 (train.py), NeMo 8cfedd72 (progress_printer.py), torchtitan 0.1.0
to 0.3.0 (components/metrics.py), DeepSpeed 0.19.8 (utils/timer.py, runtime/pipe/engine.py),
transformers 4.57.1 and 5.23.0 (trainer_callback.py).
"""

ARGUMENTS = {
    "context_parallel_size": 1,
    "global_batch_size": 32,
    "hidden_size": 8192,
    "micro_batch_size": 1,
    "num_layers": 80,
    "offload_modules": [],
    "pipeline_model_parallel_size": 4,
    "recompute_granularity": "selective",
    "recompute_method": None,
    "recompute_modules": ["mlp"],
    "recompute_num_layers": None,
    "seq_length": 4096,
    "tensor_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 5,
}


def megatron(
    number: int,
    total: int = 12,
    *,
    ms: float = 1234.5,
    tflops: float | None = 412.3,
    loss: float | None = 8.123456,
    stamp: str = "2026-01-15 10:20:31",
    skipped: int = 0,
    nans: int = 0,
    norm: float = 3.21,
    extra: str = "",
) -> str:
    """The iteration line of the last rank; loss None is what a skipped iteration prints."""
    text = f" [{stamp}] iteration {number:8d}/{total:8d} | consumed samples: {number * 32:12d} |"
    text += f" elapsed time per iteration (ms): {ms:.1f} |"
    if tflops is not None:
        text += f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    text += f" learning rate: {1.5e-4:.6E} | global batch size: {32:5d} |{extra}"
    if loss is not None and loss > 0:  # so a NaN is not printed
        text += f" lm loss: {loss:.6E} |"
    text += f" loss scale: 1.0 | grad norm: {norm:.3f} |"
    text += f" number of skipped iterations: {skipped:3d} |"
    return f"{text} number of nan iterations: {nans:3d} |\n"


def megatron_memory(rank: int, number: int, peak: float, reserved: float, tail: str = "") -> str:
    text = f"[Rank {rank}] (after {number} iterations) memory (MB) | allocated: 21034.12 |"
    text += f" max allocated: {peak} | reserved: {reserved} | max reserved: {reserved}"
    return f"{text}{tail}\n"


def megatron_header(world: int = 32, **changed: object) -> str:
    found = [
        f"using world size: {world}, data-parallel size: 2, context-parallel size: 1, "
        "hierarchical context-parallel sizes: None, tensor-model-parallel size: 4, "
        "pipeline-model-parallel size: 4",
        "------------------------ arguments ------------------------",
    ]
    for name, value in sorted({**ARGUMENTS, **changed}.items()):
        found.append(f"  {name} {'.' * (48 - len(name))} {value}")
    return "\n".join([*found, "-------------------- end of arguments ---------------------\n"])


def bridge_step(seconds: float, tflops: float) -> str:
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU\n"


def bridge_memory(rank: int, number: int, peak: float, reserved: float) -> str:
    return (
        f"[Rank {rank}] (after {number} iterations) memory (GB) | mem-allocated-gigabytes: "
        f"21.034 | mem-active-gigabytes: 21.034 | mem-inactive-gigabytes: 0.51 | "
        f"mem-reserved-gigabytes: {reserved} | mem-max-allocated-gigabytes: {peak} | "
        f"mem-max-active-gigabytes: 56.0 | mem-max-inactive-gigabytes: 4.2 | "
        f"mem-max-reserved-gigabytes: {reserved} | mem-alloc-retires: 0 | "
        f"mem-allocated-count: 1234\n"
    )


def job_throughput(number: int, tflops: float) -> str:
    """A line of progress.txt in the folder of checkpoints."""
    text = "2026-01-15 10:20:31\tJob ID: 17\t# GPUs: 32\tSaved checkpoint\t"
    text += f"Iteration: {number}\tJob throughput: {tflops:.1f} MODEL_TFLOP/s/GPU\t"
    text += f"Cumulative throughput: {399.8:.1f} MODEL_TFLOP/s/GPU\t"
    text += f"Floating-point operations: {1.2e20:.2e}\tTokens (in billions): {1.25:.2f}"
    return f"{text}\n"


def nemo(number: int, total: int = 100, *, seconds: float = 5.432, tail: str = "") -> str:
    return (
        f"Training epoch 0, iteration {number - 1}/{total - 1} | lr: 0.00015 | "
        f"global_batch_size: 256 | global_step: {number - 1} | reduced_train_loss: 8.123 | "
        f"train_step_timing in s: {seconds:.4} | TFLOPS_per_GPU: 412.3 | consumed_samples: "
        f"{number * 256}{tail}\n"
    )


def nemo_1(number: int, total: int = 1000, seconds: float = 3.41) -> str:
    """A bar is written over: a carriage return before, no newline."""
    return (
        f"\rEpoch 0: :   2%|▏         | {number}/{total} [01:10<57:30, reduced_train_loss=7.120"
        f", global_step={number - 1:.2f}, consumed_samples={number * 256:.1f}, "
        f"train_step_timing in s={seconds:.3f}]"
    )


COLOURS = ("31m", "32m", "38;2;180;60;0m", "38;2;54;234;195m", "34m", "36m", "35m", "39m")


def titan(
    number: int,
    *,
    loss: float = 7.12345,
    tps: int = 5762,
    gib: float = 55.21,
    second: float = 31.0,
    mfu: str = "26.71%",
    colour: bool = True,
) -> str:
    codes = (f"\033[{code}" * colour for code in COLOURS)
    red, green, orange, turquoise, blue, cyan, magenta, reset = codes
    stamp = f"2026-01-15 10:20:{second:06.3f}".replace(".", ",")
    text = f"[titan] {stamp} - root - INFO - {red}step: {number:2}  {green}loss: {loss:8.5f}  "
    text += f"{orange}grad_norm: {1.2345:7.4f}  {turquoise}memory: {gib:5.2f}GiB(69.71%)  "
    text += f"{blue}tps: {tps:,}  {cyan}tflops: {1264.11:,.2f}  {magenta}mfu: {mfu}{reset}"
    return f"{text}\n"


def titan_says(text: str) -> str:
    return f"[titan] 2026-01-15 10:20:21,123 - root - INFO - {text}\n"


def deepspeed(
    number: int, *, rate: float = 12.4001, peak: float = 55.21, second: float = 31.0
) -> str:
    stamp = f"2026-01-15 10:20:{second:06.3f}".replace(".", ",")
    text = f"[{stamp}] [INFO] [logging.py:128:log_dist] [Rank 0] step={number}, skipped=0, "
    text += f"lr=[0.0001], mom=[[0.9, 0.95]]\n[{stamp}] [INFO] [timer.py:264:stop] epoch=0/"
    text += f"micro_step={number * 4}/global_step={number}, RunningAvgSamplesPerSec=12.3456, "
    text += f"CurrSamplesPerSec={rate}, MemAllocated=21.03GB, MaxMemAllocated={peak}GB"
    return f"{text}\n"
