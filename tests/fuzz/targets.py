"""Every command that reads what a user gives, with a real input to break.

A case is a number: it chooses the target and seeds what is wrong with its input.
"""

import io
import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import Struct, field

from tests.advisor.models.config_json.published import PUBLISHED
from tests.fuzz.mutate import mutate, mutate_values, mutate_word
from tests.harness.logs.snapshot_by_hand import recorded_by_hand

ROOT: Final = Path(__file__).parents[2]
_RECORDED: Final = ROOT / "tests/harness/fixtures/recorded_regression"
_RUN: Final = ROOT / "results/measured/h100/runs/gpt3_22b_l8_s2048_b4"
_TRIAL: Final = "trials/2d4617e2c10d-r0/result.json"
_GOLDEN: Final = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"
_LOGS: Final = tuple(sorted((ROOT / "tests/harness/logs/recorded").glob("*.log")))
_CLEAN: Final = tuple(sorted((ROOT / "tests/advisor/diagnose/logs").glob("*.log")))
_JOBS: Final = ROOT / "tests/advisor/lint/configurations"
_RUNS: Final = ROOT / "results/measured/h100/runs/llama3_8b_l8_s8192_b2"
_SLOW_EVERY: Final = 20
TENTHS: Final = 10
"""Of all cases CI tries one tenth: those whose number ends in a digit that the commit chooses."""
_DEGREES: Final = "--tp 1 --pp 2 --cp 1"
"""Given, so that none is searched; where nothing fits on so few GPUs, few others are."""
EXIT_CODES: Final = (0, 1, 2, 3, 4)

Run = Callable[[Path, Sequence[str]], int]
"""Runs the words of a command in a folder that holds the files; the exit code."""


class Target(Struct, frozen=True, kw_only=True):
    """One command. files: name in the folder -> content; broken: those of which one is mutated;
    words: the command, {} being the folder, of which those with an index in `spoken` are mutated
    where no file is. values: only values of JSON documents are changed, so that the text is
    still JSON. slow: of some seconds, and tried by the bench alone."""

    name: str
    run: Run
    words: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    spoken: tuple[int, ...] = ()
    values: bool = False
    slow: bool = False


class WrongError(AssertionError):
    """A command that did not end as every command must."""


def target_of(number: int, targets: Sequence[Target]) -> Target:
    """The target of a case: the slow ones have one case in twenty."""
    quick = [target for target in targets if not target.slow]
    slow = [target for target in targets if target.slow]
    turn = number // TENTHS  # each tenth tries all targets
    if slow and turn % _SLOW_EVERY == 0:
        return slow[turn // _SLOW_EVERY % len(slow)]
    return quick[turn % len(quick)]


def run_broken(number: int, folder: Path, target: Target) -> int:
    """Run the case `number` of a target in an empty folder of its own; the exit code.

    WrongError, or whatever the command raises, where it does not end in an exit code and, where
    that is 2, one line.
    """
    random = Random(number)
    files, words = dict(target.files), list(target.words)
    if target.broken:
        name = random.choice(target.broken)
        files[name] = (mutate_values if target.values else mutate)(files[name], random)
    for index in target.spoken:
        if len(target.spoken) == 1 or random.random() < 0.5:
            words[index] = mutate_word(words[index], random)
    return run_with(target, folder, files, words)


def run_with(target: Target, folder: Path, files: Mapping[str, bytes], words: Sequence[str]) -> int:
    """Run a target with these files and words; as `run_broken`."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = target.run(folder, [word.replace("{}", str(folder)) for word in words])
    said = err.getvalue()
    if code not in EXIT_CODES or "Traceback" in said:
        raise WrongError(f"{target.name}: exit code {code}: {said[-2000:]}")
    if code == 2 and len(said.splitlines()) != 1:
        raise WrongError(f"{target.name}: exit code 2 says {said[-2000:]!r}")
    return code


def _advise(_: Path, words: Sequence[str]) -> int:
    from advisor.cli.main import main

    return main(words)


def _harness(_: Path, words: Sequence[str]) -> int:
    from harness.cli.main import main

    return main(words)


def _reported(read: Callable[[], object]) -> int:
    """The exit code of what `read` stands for."""
    from advisor.base.errors import UserError

    try:
        read()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _campaign(folder: Path, _: Sequence[str]) -> int:
    """What a campaign reads before it starts a process."""
    from research.campaign.items import load_campaign
    from research.campaign.journal import Journal, standing

    return _reported(
        lambda: (
            load_campaign(str(folder / "plan.yaml")).first_run(),
            standing(Journal(folder / "campaign.jsonl").attempts(), ""),
        )
    )


def _resume(folder: Path, _: Sequence[str]) -> int:
    """What `harness run` reads of a folder before it starts a process: every trial has a result, or
    is run again. The other trial's result is never lost."""
    from harness.execution.progress import Progress
    from harness.execution.runner import Runner
    from harness.trial.store import RunFolder
    from harness.trial.trial import PlannedSetting, RunPlan
    from tests.harness.conftest import TRIAL

    plan = RunPlan(
        experiment="x", device_name="cpu", settings=(PlannedSetting(trial=TRIAL, rank=1),)
    )
    run = RunFolder(folder)
    Runner(folder=run, plan=plan, progress=Progress(1))._finished(TRIAL)
    kept = folder / "trials" / "other" / "result.json"
    if kept.read_bytes() != b"{}":
        raise WrongError("another trial's result is gone")
    run.create(plan)
    return 0


def targets(*, slow: bool) -> tuple[Target, ...]:
    """All of them, or those that take less than a second or so."""
    found = (*_advisor(), *_lint(), *_from(), *_logs(), *_results(), *_spoken(), *_folders())
    found += (*_snapshots(), *_stores())
    return tuple(target for target in found if slow or not target.slow)


_PATHS: Final = {"@recorded": str(_RECORDED), "@golden": str(_GOLDEN)}


def _target(
    name: str, line: str = "", files: Mapping[str, bytes] | None = None, **more: Any
) -> Target:
    """A command, in the program that its name begins with; every file is broken where `broken` does
    not say which."""
    run = _advise if name.startswith("advise") else _harness
    files = files or {}
    return Target(
        name=name,
        words=tuple(_PATHS.get(word, word) for word in line.split()),
        files=files,
        **{"run": run, "broken": tuple(files)} | more,
    )


def _advisor() -> tuple[Target, ...]:
    names = ("calibration/h100.yaml", "hardware/H100-SXM-80GB.yaml", "recipe/llama3_8b.csv")
    config = {
        name: (ROOT / "configs" / name).read_bytes() for name in (*names, "model/llama3_8b.yaml")
    }
    # no more layers and no wider ones than a fuzzed search takes in little time
    small = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
    small |= {"num_attention_heads": 8, "max_position_embeddings": 2048}
    hugging_face = json.dumps(PUBLISHED["mixtral_8x7b"] | small, indent=1).encode()
    asked = f"--gpus 2xH100 --top 1 {_DEGREES}"
    model = {"m.yaml": config["model/llama3_8b.yaml"]}
    whole = "--config-dir {} --model llama3_8b --gpus 8xH100 --top 1"
    return (
        _target("advise --model FILE.yaml", f"--model {{}}/m.yaml {asked}", model),
        _target(
            "advise --model config.json", f"--model {{}} {asked}", {"config.json": hugging_face}
        ),
        _target("advise --config-dir", whole, config),
        _target("advise recipes", "recipes llama3_8b --config-dir {}", config, broken=names[2:]),
        _target("advise gpus", "gpus --config-dir {}", config, broken=names[1:2]),
    )


def _lint() -> tuple[Target, ...]:
    script = b"""#!/bin/bash
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
ARGS="--num-layers 32 --hidden-size 4096 --recompute-granularity selective"
torchrun --nproc-per-node 8 pretrain_gpt.py $ARGS --recompute-modules core_attn mlp \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size ${PP:-2} --bf16
"""
    config = b"""ENV_VARS:
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
MODEL_ARGS:
  --num-layers: 12
  --recompute-granularity: full
  --recompute-method: uniform
  --recompute-num-layers: 1
  --tensor-model-parallel-size: 2
  --moe-layer-freq: ([0]*1+[1]*11)
"""
    bridge = b"""model:
  num_layers: 12
  recompute_granularity: selective
  recompute_modules: [core_attn]
  attention_backend: {_target_: x.AttnBackend, _args_: [5], _call_: true}
  cuda_graph_scope: []
mixed_precision: bf16_with_fp8_current_scaling_mixed
"""
    return tuple(
        _target(f"advise lint {name}", f"lint {{}}/{name}", {name: content})
        for name, content in (("a.sh", script), ("a.yaml", config), ("b.yaml", bridge))
    )


_LINTED: Final = (
    *("bridge_recipe.py", "hf_sft_training_arguments.py", "torchtitan_llama3_8b.toml"),
    *("deepspeed_zero3_auto.json", "accelerate_fsdp2.yaml", "trl_sft_recipe.yaml"),
    *("megatron_slurm_srun.sbatch", "megatron_function_and_heredoc.sh", "nemo2_recipe.py"),
)
_READ: Final = (
    *("llama3_8b.toml", "trainer.py", "gpt3_function.sh", "bridge_dumped.yaml", "axolotl.yaml"),
    *("fsdp2.yaml", "accelerate_fsdp2.sh", "ds_auto.json"),
)


def _from() -> tuple[Target, ...]:
    """Files of every framework and language as they lie in the corpora of lint and --from."""
    asked = "--gpus 8xH100 --top 1"
    linted = ((_JOBS / "correct" / name, "lint {{}}/{0}") for name in _LINTED)
    more = dict.fromkeys(("ds_auto.json", "fsdp2.yaml"), " --model llama3_8b")
    more["gpt3_function.sh"] = f" {_DEGREES}"
    read = ((_JOBS / "jobs" / name, f"--from {{{{}}}}/{{0}} {asked}") for name in _READ)
    return tuple(
        _target(
            f"advise {line.split()[0]} {path.name}",
            line.format(path.name) + (more.get(path.name, "") if "--from" in line else ""),
            {path.name: path.read_bytes()},
        )
        for path, line in (*linted, *read)
    )


def _logs() -> tuple[Target, ...]:
    oom = (
        b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 3 "
        b"has a total capacity of 79.11 GiB of which 687.12 MiB is free. Process 5 has 78.43 GiB "
        b"memory in use. Of the allocated memory 73.90 GiB is allocated by PyTorch, and 1.12 GiB "
        b"is reserved by PyTorch but unallocated.\n"
        b"torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for "
        b"the following tensors have different metadata than during the forward pass.\n"
        b"tensor at position 3:\nsaved metadata: {'shape': torch.Size([2, 1024]), 'dtype': "
        b"torch.float32, 'device': device(type='cuda', index=0)}\nrecomputed metadata: {'shape': "
        b"torch.Size([4, 1024]), 'dtype': torch.float32, 'device': device(type='cuda', index=0)}\n"
    )
    megatron = b"".join(
        b"using world size: 8, data-parallel size: 8, \n" * (step == 1)
        + b"  num_layers ...................................... 12\n" * (step == 1)
        + b" [2026-01-01 00:00:%02d] iteration %8d/      12 | consumed samples: %12d | elapsed "
        b"time per iteration (ms): 1%d.5 | throughput per GPU (TFLOP/s/GPU): 400.1 | "
        b"learning rate: 1.0E-05 | global batch size:    16 | lm loss: 1.08%dE+01 | "
        b"loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | "
        b"number of nan iterations:   0 |\n"
        b"[Rank 0] (after %d iterations) memory (MB) | allocated: 100.5 | max allocated: 200.5 | "
        b"reserved: 300.0 | max reserved: 400.0\n" % (step, step, step * 16, step, step, step)
        for step in range(1, 13)
    )
    nemo = b"".join(
        b"Training epoch 0, iteration %d/11 | lr: 1e-5 | global_batch_size: 8 | global_step: %d | "
        b"max_memory_reserved: 5242880 | max_memory_allocated: 4194304 | reduced_train_loss: 10.9 |"
        b" train_step_timing in s: 0.5%d | TFLOPS_per_GPU: 300.5\n" % (step, step, step)
        for step in range(12)
    )
    logs = {f"{path.stem}.log": path.read_bytes()[:20_000] for path in _LOGS}
    logs |= {"megatron.log": megatron, "nemo.log": nemo, "oom.log": oom}
    texts = {"clean.log": _CLEAN[0].read_bytes()[:20_000] + oom, "oom.log": oom}
    diagnosed = (
        _target("advise diagnose", f"diagnose {{}}/{name}", {name: content})
        for name, content in texts.items()
    )
    parsed = (
        _target(f"harness ingest {name}", name, {name: content}, run=_ingest)
        for name, content in logs.items()
    )
    line = "ingest {}/megatron.log like={}/like.json runs={}/runs"
    both = {"megatron.log": megatron, "like.json": _result()}
    return (*diagnosed, *parsed, _target("harness ingest", line, both, slow=True))


def _ingest(folder: Path, words: Sequence[str]) -> int:
    """`harness ingest` without Hydra, which takes most of its time."""
    from advisor.base.errors import UserError
    from harness.cli.ingest import result_line
    from harness.logs.ingestion import LogIdentity, Source, ingest
    from harness.planner.run_request import RecomputeChoice, RunConfig
    from harness.trial.store import decode_result, encode
    from harness.trial.trial import MeasurementPlan

    config = RunConfig(
        experiment_name="x",
        experiment={},
        recompute=RecomputeChoice(),
        model={},
        layout={},
        job={},
        measure=MeasurementPlan(),
    )
    try:
        source = Source(name="a", paths=(folder / words[0],))
        (one,) = ingest([source], None, LogIdentity(config=config), accept_incomplete=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    result_line(one)
    decode_result(encode(one.result))  # what is written is read again
    return 0


def _result() -> bytes:
    return (_RUN / _TRIAL).read_bytes()


def _results() -> tuple[Target, ...]:
    golden = _GOLDEN.read_bytes()
    run = {"run/plan.json": (_RUN / "plan.json").read_bytes(), f"run/{_TRIAL}": _result()}
    both = {"r.json": (_RECORDED / "selective_mlp/result.json").read_bytes(), "golden.json": golden}
    update = "golden update --reason x {}/r.json --to {}/to"
    compare = "compare {}/run --golden {}/golden.json"
    beside = run | {"golden.json": golden}
    return (
        _target(
            "harness compare", "compare {}/r.json --golden {}/golden.json --allow-env-change", both
        ),
        _target("harness golden show", "golden show {}/golden.json", both, broken=("golden.json",)),
        _target("harness golden update", update, both, broken=("r.json",)),
        _target("harness report", "report {}/run", run, slow=True),
        _target("harness accuracy", "accuracy {}/run", run, slow=True),
        _target("harness compare of a run", compare, beside, broken=tuple(run)),
    )


SPOKEN: Final = {
    f"advise --model qwen3_30b_a3b --gpus 2xH200 --top 1 {_DEGREES}": (
        "model.num_layers=48 model.hidden_size=2048 model.moe_layer_freq=1 model.kv_channels=128"
        " layout.pipeline_model_parallel_layout=Et*24|t*24L layout.cp_comm_type=p2p"
        " layout.data_parallel_size=1 job.seq_length=4096 job.moe_load_imbalance=1.2"
        " job.memory_budget_bytes=70GiB job.mean_packed_length=512 job.main_grads_dtype=fp32"
    ),
    "advise --model llama3_8b --gpus 8xH100 --top 1": (
        "--memory-budget=70GiB --seq-length=4096 --global-batch-size=64 --recompute=full:block:2"
        " --gpus=8xH100 --framework-version=0.16 --tp=2 --top=3 --price-per-gpu-hour=2.5"
        " --model=llama3_8b"
    ),
    "harness run --dry-run device=cpu backend=native": (
        "job.seq_length=128 measure.repeats=1 measure.steps=3 recompute.settings=[none]"
        " model.num_layers=2 layout.tensor_model_parallel_size=1 recompute.top=2 gpus=8xH100"
    ),
    "harness rehearse --dry-run model=llama3_70b gpus=32xH100": (
        "layout=tp4_pp4_vpp5 stage=1 steps=3 gpus=32xH100 job.seq_length=4096 model.num_layers=80"
        " recompute=[none,full:block:4]"
    ),
    "harness compare @recorded --golden @golden": "--limit=step_time_seconds=3%",
}
"""The last word of each of these commands is broken, one after another of those on the right."""


def _spoken() -> tuple[Target, ...]:
    return tuple(
        _target(
            f"{' '.join(line.split()[: 1 + line.startswith('harness')])} {word.partition('=')[0]}",
            f"{line.partition(' ')[2]} {word}",
            spoken=(len(line.split()) - 1,),
            slow=line.startswith("harness run"),
        )
        for line, words in SPOKEN.items()
        for word in words.split()
    )


def _folders() -> tuple[Target, ...]:
    from harness.trial.result import StepTimes, TrialResult, TrialStatus
    from harness.trial.store import encode
    from harness.trial.trial import Trial
    from tests.harness.conftest import TRIAL

    def result(trial: Trial) -> bytes:
        from harness.trial.store import plain

        times = StepTimes(seconds=(0.1, 0.2), warmup_seconds=(1.0,), clock="host")
        made = TrialResult(
            name=trial.name,
            status=TrialStatus.OK,
            trial=plain(trial),
            environment={},
            started_at="2026-01-01",
            wall_seconds=1.0,
            times=times,
            loss=(1.0, 2.0),
        )
        return encode(made).encode()

    mine = f"trials/{TRIAL.name}"
    trial = {f"{mine}/trial.json": encode(TRIAL).encode(), "trials/other/result.json": b"{}"}
    ended = trial | {f"{mine}/result.json": result(TRIAL)}
    begun = trial | {
        f"{mine}/rank0.json": result(TRIAL),
        f"{mine}/job.json": b'{"job": "17", "submitted_at": "2026-01-01"}',
        f"{mine}/state.json": b'{"phase": "forward", "step": 3}',
    }
    journal = (ROOT / "results/measured/h100/campaign.jsonl").read_bytes()
    samples = (ROOT / "results/measured/h200/calibrated/calibration/h200.jsonl").read_bytes()
    fitted = (ROOT / "results/measured/h200/calibrated/calibration/h200.yaml").read_bytes()
    plan = (ROOT / "research/campaign/lists/cpu.yaml").read_bytes()
    experiment = (ROOT / "configs/experiment/llama3_8b_1xh200.yaml").read_bytes()
    ours = b"settings:\n  - none\n  - full:block:4\ntop: 3\n"
    composed = "run --dry-run --config-dir {} device=cpu experiment=mine recompute=ours"
    dead = {name: content for name, content in begun.items() if "job.json" not in name}
    with_result = tuple(f"{mine}/{name}.json" for name in ("trial", "result"))
    without = tuple(f"{mine}/{name}.json" for name in ("trial", "rank0", "state"))
    return (
        _target(
            "harness run in a folder with a result", "", ended, run=_resume, broken=with_result
        ),
        _target("harness run in a folder without one", "", dead, run=_resume, broken=without),
        _target("campaign", "", {"plan.yaml": plan, "campaign.jsonl": journal}, run=_campaign),
        _target(
            "harness calibrate --refit",
            "calibrate --refit {}/h200.yaml",
            {"h200.yaml": fitted, "h200.jsonl": samples},
            slow=True,
        ),
        _target(
            "harness run --config-dir",
            composed,
            {"experiment/mine.yaml": experiment, "recompute/ours.yaml": ours},
            slow=True,
        ),
    )


def _learned(folder: Path, _: Sequence[str]) -> int:
    """What `advise --calibration RUNS` computes before it ranks: of two runs one stays whole."""
    from advisor.hardware.calibration import load_calibration
    from advisor.hardware.catalogue import load_gpu
    from advisor.search.learn import calibration_from

    gpu = load_gpu("H100-SXM-80GB")
    return _reported(lambda: calibration_from([folder], load_calibration(gpu), gpu))


def _store(folder: Path, _: Sequence[str]) -> int:
    """What `harness sweep` reads of a sweep that it goes on with."""
    from harness.planner.launcher_options import SweepOptions
    from harness.sweeps.workers.opening import open_study
    from harness.trial.store import RunFolder
    from tests.harness.sweeps.workers.grid import grid

    def read() -> None:
        run, options = RunFolder(folder / "x"), SweepOptions()
        with open_study(run, grid(2), options, "cpu", frozenset(), str) as study:
            study.history()

    return _reported(read)


def _stores() -> tuple[Target, ...]:
    """Runs to learn from, and the journal of a sweep that was told of one result."""
    paths = sorted(_RUNS.glob("trials/*/result.json"))[:2]
    runs = {f"{number}/result.json": path.read_bytes() for number, path in enumerate(paths)}
    more = {"run": _learned, "values": True, "broken": ("0/result.json",)}
    with TemporaryDirectory() as folder:
        _store(Path(folder), ())
        journal = {"x/optuna.journal": (Path(folder) / "x/optuna.journal").read_bytes()}
    return (
        _target("advise --calibration RUNS", "", runs, **more),
        _target("harness sweep in a folder with a journal", "", journal, run=_store),
    )


def _snapshots() -> tuple[Target, ...]:
    content = {"a.pickle": pickle.dumps(recorded_by_hand())}
    return (_target("harness snapshot", "snapshot {}/a.pickle", content),)
