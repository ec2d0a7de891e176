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
from typing import Final

from msgspec import Struct, field

from tests.fuzz.mutate import mutate, mutate_word
from tests.harness.logs.snapshot_by_hand import recorded_by_hand

ROOT: Final = Path(__file__).parents[2]
_RECORDED: Final = ROOT / "tests/harness/fixtures/recorded_regression"
_RUN: Final = ROOT / "results/measured/h100/runs/gpt3_22b_l8_s2048_b4"
_TRIAL: Final = "trials/2d4617e2c10d-r0/result.json"
_GOLDEN: Final = ROOT / "results/golden/llama3_70b_sft_32xh100_fp8_current.json"
_LOGS: Final = tuple(sorted((ROOT / "tests/harness/logs/recorded").glob("*.log")))
_CLEAN: Final = tuple(sorted((ROOT / "tests/advisor/diagnose/logs").glob("*.log")))
_SLOW_EVERY: Final = 20
_DEGREES: Final = ("--tp", "1", "--pp", "2", "--cp", "1")
"""Given, so that none is searched; where nothing fits on so few GPUs, few others are."""
EXIT_CODES: Final = (0, 1, 2, 3, 4)

Run = Callable[[Path, Sequence[str]], int]
"""Runs the words of a command in a folder that holds the files; the exit code."""


class Target(Struct, frozen=True, kw_only=True):
    """One command. files: name in the folder -> content; broken: those of which one is mutated;
    words: the command, {} being the folder, of which those with an index in `spoken` are mutated
    where no file is. slow: of some seconds, and tried by the bench alone."""

    name: str
    run: Run
    words: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    spoken: tuple[int, ...] = ()
    slow: bool = False


class WrongError(AssertionError):
    """A command that did not end as every command must."""


def target_of(number: int, targets: Sequence[Target]) -> Target:
    """The target of a case: the slow ones have one case in twenty."""
    quick = [target for target in targets if not target.slow]
    slow = [target for target in targets if target.slow]
    if slow and number % _SLOW_EVERY == 0:
        return slow[number // _SLOW_EVERY % len(slow)]
    return quick[number % len(quick)]


def run_broken(number: int, folder: Path, target: Target) -> int:
    """Run the case `number` of a target in an empty folder of its own; the exit code.

    WrongError, or whatever the command raises, where it does not end in an exit code and, where
    that is 2, one line.
    """
    random = Random(number)
    files, words = dict(target.files), list(target.words)
    if target.broken:
        name = random.choice(target.broken)
        files[name] = mutate(files[name], random)
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


def _campaign(folder: Path, _: Sequence[str]) -> int:
    """What a campaign reads before it starts a process."""
    from advisor.base.errors import UserError
    from research.campaign.items import load_campaign
    from research.campaign.journal import Journal, standing

    try:
        load_campaign(str(folder / "plan.yaml")).first_run()
        standing(Journal(folder / "campaign.jsonl").attempts(), "")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _resume(folder: Path, _: Sequence[str]) -> int:
    """What `harness run` reads of a folder before it starts a process: every trial has a result, or
    is run again. The other trial's result is never lost."""
    from harness.execution.progress import Progress
    from harness.execution.runner import Runner
    from harness.trial.run_plan import PlannedSetting, RunPlan
    from harness.trial.store import RunFolder
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
    found = (*_advisor(), *_lint(), *_logs(), *_results(), *_spoken(), *_folders(), *_snapshots())
    return tuple(target for target in found if slow or not target.slow)


def _advisor() -> tuple[Target, ...]:
    model = (ROOT / "configs/model/llama3_8b.yaml").read_bytes()
    asked = ("--gpus", "2xH100", "--top", "1", *_DEGREES)
    config = {
        "calibration/h100.yaml": (ROOT / "configs/calibration/h100.yaml").read_bytes(),
        "hardware/H100-SXM-80GB.yaml": (ROOT / "configs/hardware/H100-SXM-80GB.yaml").read_bytes(),
        "recipe/llama3_8b.csv": (ROOT / "configs/recipe/llama3_8b.csv").read_bytes(),
        "model/llama3_8b.yaml": model,
    }
    return (
        Target(
            name="advise --model FILE.yaml",
            run=_advise,
            files={"m.yaml": model},
            broken=("m.yaml",),
            words=("--model", "{}/m.yaml", *asked),
        ),
        Target(
            name="advise --model config.json",
            run=_advise,
            files={"config.json": json.dumps(_HUGGING_FACE, indent=1).encode()},
            broken=("config.json",),
            words=("--model", "{}", *asked),
        ),
        Target(
            name="advise --config-dir",
            run=_advise,
            files=config,
            broken=tuple(config),
            words=("--config-dir", "{}", "--model", "llama3_8b", "--gpus", "8xH100", "--top", "1"),
        ),
        Target(
            name="advise recipes",
            run=_advise,
            files=config,
            broken=("recipe/llama3_8b.csv",),
            words=("recipes", "llama3_8b", "--config-dir", "{}"),
        ),
        Target(
            name="advise gpus",
            run=_advise,
            files=config,
            broken=("hardware/H100-SXM-80GB.yaml",),
            words=("gpus", "--config-dir", "{}"),
        ),
    )


_HUGGING_FACE: Final = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 2048,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


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
        Target(
            name=f"advise lint {name}",
            run=_advise,
            files={name: content},
            broken=(name,),
            words=("lint", f"{{}}/{name}"),
        )
        for name, content in (("a.sh", script), ("a.yaml", config), ("b.yaml", bridge))
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
    diagnosed = tuple(
        Target(
            name="advise diagnose",
            run=_advise,
            files={name: content},
            broken=(name,),
            words=("diagnose", f"{{}}/{name}"),
        )
        for name, content in texts.items()
    )
    parsed = tuple(
        Target(
            name=f"harness ingest {name}",
            run=_ingest,
            files={name: content},
            broken=(name,),
            words=(name,),
        )
        for name, content in logs.items()
    )
    whole = Target(
        name="harness ingest",
        run=_harness,
        files={"megatron.log": megatron, "like.json": _result()},
        broken=("megatron.log", "like.json"),
        words=("ingest", "{}/megatron.log", "like={}/like.json", "runs={}/runs"),
        slow=True,
    )
    return (*diagnosed, *parsed, whole)


def _ingest(folder: Path, words: Sequence[str]) -> int:
    """`harness ingest` without Hydra, which takes most of its time."""
    from advisor.base.errors import UserError
    from harness.cli.ingest import line
    from harness.logs.ingestion import Identity, Source, ingest
    from harness.planner.run_request import RecomputeChoice, RunConfig
    from harness.trial.codec import decode_result, encode
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
        (one,) = ingest([source], None, Identity(config=config), accept_incomplete=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    line(one)
    decode_result(encode(one.result))  # what is written is read again
    return 0


def _result() -> bytes:
    return (_RUN / _TRIAL).read_bytes()


def _results() -> tuple[Target, ...]:
    recorded = (_RECORDED / "selective_mlp/result.json").read_bytes()
    golden = _GOLDEN.read_bytes()
    run = {"run/plan.json": (_RUN / "plan.json").read_bytes(), f"run/{_TRIAL}": _result()}
    both = {"r.json": recorded, "golden.json": golden}
    found = [
        Target(
            name="harness compare",
            run=_harness,
            files=both,
            broken=("r.json", "golden.json"),
            words=("compare", "{}/r.json", "--golden", "{}/golden.json", "--allow-env-change"),
        ),
        Target(
            name="harness golden show",
            run=_harness,
            files=both,
            broken=("golden.json",),
            words=("golden", "show", "{}/golden.json"),
        ),
        Target(
            name="harness golden update",
            run=_harness,
            files=both,
            broken=("r.json",),
            words=("golden", "update", "--reason", "x", "{}/r.json", "--to", "{}/to"),
        ),
        Target(
            name="harness report",
            run=_harness,
            files=run,
            broken=tuple(run),
            words=("report", "{}/run"),
            slow=True,
        ),
        Target(
            name="harness accuracy",
            run=_harness,
            files=run,
            broken=tuple(run),
            words=("accuracy", "{}/run"),
            slow=True,
        ),
        Target(
            name="harness compare of a run",
            run=_harness,
            files={**run, "golden.json": golden},
            broken=tuple(run),
            words=("compare", "{}/run", "--golden", "{}/golden.json"),
        ),
    ]
    return tuple(found)


def _spoken() -> tuple[Target, ...]:
    asked = ("--model", "qwen3_30b_a3b", "--gpus", "2xH200", "--top", "1", *_DEGREES)
    keys = [
        "model.num_layers=48",
        "model.hidden_size=2048",
        "model.moe_layer_freq=1",
        "model.kv_channels=128",
        "layout.pipeline_model_parallel_layout=Et*24|t*24L",
        "layout.cp_comm_type=p2p",
        "layout.data_parallel_size=1",
        "job.seq_length=4096",
        "job.moe_load_imbalance=1.2",
        "job.memory_budget_bytes=70GiB",
        "job.mean_packed_length=512",
        "job.main_grads_dtype=fp32",
    ]
    flags = [
        "--memory-budget=70GiB",
        "--seq-length=4096",
        "--global-batch-size=64",
        "--recompute=full:block:2",
        "--gpus=8xH100",
        "--framework-version=0.16",
        "--tp=2",
        "--top=3",
        "--price-per-gpu-hour=2.5",
        "--model=llama3_8b",
    ]
    overrides = [
        "job.seq_length=128",
        "measure.repeats=1",
        "measure.steps=3",
        "recompute.settings=[none]",
        "model.num_layers=2",
        "layout.tensor_model_parallel_size=1",
        "recompute.top=2",
        "gpus=8xH100",
    ]
    rehearsed = [
        "layout=tp4_pp4_vpp5",
        "stage=1",
        "steps=3",
        "gpus=32xH100",
        "job.seq_length=4096",
        "model.num_layers=80",
        "recompute=[none,full:block:4]",
    ]
    gates = ("--limit=step_time_seconds=3%",)
    told = tuple(
        Target(
            name=f"advise {key.partition('=')[0]}",
            run=_advise,
            words=(*asked, key),
            spoken=(len(asked),),
        )
        for key in keys
    )
    flagged = tuple(
        Target(
            name=f"advise {flag.partition('=')[0]}",
            run=_advise,
            words=("--model", "llama3_8b", "--gpus", "8xH100", "--top", "1", flag),
            spoken=(6,),
        )
        for flag in flags
    )
    dry = tuple(
        Target(
            name=f"harness run {key.partition('=')[0]}",
            run=_harness,
            words=("run", "--dry-run", "device=cpu", "backend=native", key),
            spoken=(4,),
            slow=True,
        )
        for key in overrides
    )
    rehearse = tuple(
        Target(
            name=f"harness rehearse {key.partition('=')[0]}",
            run=_harness,
            words=("rehearse", "--dry-run", "model=llama3_70b", "gpus=32xH100", key),
            spoken=(4,),
        )
        for key in rehearsed
    )
    limits = tuple(
        Target(
            name="harness compare --limit",
            run=_harness,
            words=("compare", str(_RECORDED), "--golden", str(_GOLDEN), gate),
            spoken=(4,),
        )
        for gate in gates
    )
    return (*told, *flagged, *dry, *rehearse, *limits)


def _folders() -> tuple[Target, ...]:
    from harness.trial.codec import encode
    from harness.trial.result import StepTimes, TrialResult, TrialStatus
    from harness.trial.trial import Trial
    from tests.harness.conftest import TRIAL

    def result(trial: Trial) -> bytes:
        from harness.trial.codec import plain

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
    return (
        Target(
            name="harness run in a folder with a result",
            run=_resume,
            files=ended,
            broken=(f"{mine}/trial.json", f"{mine}/result.json"),
        ),
        Target(
            name="harness run in a folder without one",
            run=_resume,
            files={name: content for name, content in begun.items() if "job.json" not in name},
            broken=(f"{mine}/trial.json", f"{mine}/rank0.json", f"{mine}/state.json"),
        ),
        Target(
            name="campaign",
            run=_campaign,
            files={"plan.yaml": plan, "campaign.jsonl": journal},
            broken=("plan.yaml", "campaign.jsonl"),
        ),
        Target(
            name="harness calibrate --refit",
            run=_harness,
            files={"h200.yaml": fitted, "h200.jsonl": samples},
            broken=("h200.yaml", "h200.jsonl"),
            words=("calibrate", "--refit", "{}/h200.yaml"),
            slow=True,
        ),
        Target(
            name="harness run --config-dir",
            run=_harness,
            files={
                "experiment/mine.yaml": experiment,
                "recompute/ours.yaml": b"settings:\n  - none\n  - full:block:4\ntop: 3\n",
            },
            broken=("experiment/mine.yaml", "recompute/ours.yaml"),
            words=(
                *("run", "--dry-run", "--config-dir", "{}", "device=cpu"),
                *("experiment=mine", "recompute=ours"),
            ),
            slow=True,
        ),
    )


def _snapshots() -> tuple[Target, ...]:
    content = pickle.dumps(recorded_by_hand())
    return (
        Target(
            name="harness snapshot",
            run=_harness,
            files={"a.pickle": content},
            broken=("a.pickle",),
            words=("snapshot", "{}/a.pickle"),
        ),
    )
