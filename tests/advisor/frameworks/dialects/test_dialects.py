"""Dialects of fine-tuning: files that people write are the jobs that their programs run, and what
is printed is read back as the same job."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.base.fields import split_key_value
from advisor.base.rule import Level
from advisor.cli import main as cli
from advisor.frameworks.dialect_rows import dialect_names, names_of, rows_of, value_of
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import label_of, parts_of
from advisor.job.job import Job
from advisor.lint.left_out import left_out
from advisor.lint.request_from import read_job
from advisor.lint.target import lint_target
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.layouts import layouts

JOBS = yaml.safe_load((Path(__file__).parent / "jobs.yaml").read_text())
PROGRAMS = {
    Framework.TRL: "trl sft",
    Framework.LLAMA_FACTORY: "llamafactory-cli train",
    Framework.AXOLOTL: "axolotl train",
    Framework.MS_SWIFT: "swift sft",
    Framework.MEGATRON_SWIFT: "megatron sft",
    Framework.AUTOMODEL: "automodel",
}
ALGORITHMS = {"grpo": {Framework.TRL: "trl grpo", Framework.MS_SWIFT: "swift rlhf"}}
TUNED = {
    "full": (),
    "LoRA": ("tuning.adapter=lora", "tuning.rank=32", "samples.packing=packed"),
    "QLoRA": ("tuning.adapter=lora", "tuning.base_weights=nf4", "tuning.dropout=0.1"),
    "DoRA": ("tuning.adapter=dora", "tuning.target_modules=q_proj,v_proj"),
    "8 bits": ("tuning.adapter=lora", "tuning.base_weights=int8"),
    "GRPO": ("rl.algorithm=grpo", "rl.engine=vllm", "rl.response_length=1024"),
}
WITHOUT = {  # what a dialect has no words for
    Framework.LLAMA_FACTORY: ("GRPO",),
    Framework.AXOLOTL: ("GRPO",),
    Framework.AUTOMODEL: ("GRPO",),
    Framework.MEGATRON_SWIFT: ("QLoRA", "8 bits", "GRPO", "DoRA"),
}


def job_of(request: Request) -> Job:
    """The job of a request, in its first layout where it leaves that open."""
    found = resolve(request)
    return found.job(found.layout if found.layout is not None else next(iter(layouts(found))))


@pytest.mark.parametrize("name", JOBS)
def test_a_realistic_file_is_the_job_that_its_program_runs(tmp_path, name: str) -> None:
    case = JOBS[name]
    path = tmp_path / case["file"]
    path.write_text(case["text"])
    given = {"gpus": "8xH100", **{k: case[k] for k in ("model", "gpus") if k in case}}
    read = read_job(str(path), given)
    job = job_of(read.request)
    said = {field: value_of(job, field) for field in case["is"] if field != "model.name"}
    said = {k: list(v) if isinstance(v, tuple) else v for k, v in said.items()}
    assert {"model.name": job.model.name, **said} == case["is"]
    assert read.configuration.recompute == case["recompute"]
    assert read.configuration.num_gpus == case.get("num_gpus")
    assert list(left_out(read.configuration)) == case.get("untaken", [])
    assert not [f for f in lint_target(str(path)).findings if f.level is Level.ERROR]


def printed(framework: Framework, overrides: tuple[str, ...]) -> Iterator[tuple[Job, str, str]]:
    """A job with settings of it, and what is printed of both: on one GPU and on several."""
    for gpus in ("1xH100", "8xH100"):
        request = Request(model="qwen3_8b", gpus=gpus, framework=framework, overrides=overrides)
        job, stack = job_of(request), parts_of(framework)
        for setting in itertools.islice(stack.settings.candidates(job), 3):
            flags = stack.spelling.setting_flags(setting, job)
            yield job, str(setting.spec), f"{stack.spelling.layout_flags(job)} {flags}"


@pytest.mark.parametrize(
    ("framework", "kind"),
    [(f, k) for f in PROGRAMS for k in TUNED if k not in WITHOUT.get(f, ())],
)
def test_what_is_printed_is_read_as_the_same_job(tmp_path, framework, kind: str) -> None:
    algorithm = dict(map(split_key_value, TUNED[kind])).get("rl.algorithm", "")
    program = ALGORITHMS.get(algorithm, PROGRAMS)[framework]
    for job, spec, words in printed(framework, TUNED[kind]):
        script = tmp_path / "run.sh"
        script.write_text(f"{program} {words}\n")
        given = {"model": "qwen3_8b", "gpus": f"{job.num_gpus}xH100"}
        read = read_job(str(script), given)
        assert read.configuration.framework == framework
        assert read.configuration.recompute == spec, words
        again = job_of(read.request)
        assert again.layout == job.layout
        same = ("tuning", "head", "samples", "rl") if kind != "GRPO" else ("tuning", "head")
        for field in (*same, "micro_batch_size", "global_batch_size", "seq_length"):
            if (kind, field) != ("GRPO", "seq_length"):  # which no option of it says
                mine, its = getattr(job.config, field), getattr(again.config, field)
                assert _plain(its) == _plain(mine), (field, words)
        findings = lint_target(str(script)).findings
        assert not [f for f in findings if f.level is Level.ERROR], words


@pytest.mark.parametrize("framework", [*PROGRAMS][:4])
@pytest.mark.parametrize("kind", ["full", "LoRA"])
def test_deepspeeds_job_is_printed_in_the_words_of_its_dialect(tmp_path, framework, kind) -> None:
    own = (f"job.trainer={framework}", "model.transformer_impl=transformers", *TUNED[kind])
    script = tmp_path / "run.sh"
    for job, spec, words in printed(Framework.DEEPSPEED, own):
        script.write_text(f"{PROGRAMS[framework]} {words}\n")
        read = read_job(str(script), {"model": "qwen3_8b", "gpus": f"{job.num_gpus}xH100"})
        assert read.configuration.hands_to == Framework.DEEPSPEED
        assert read.configuration.recompute.partition("+")[0] == spec.partition("+")[0], words
        again = job_of(read.request)
        assert again.layout == job.layout
        for field in ("tuning", "samples", "micro_batch_size", "global_batch_size", "seq_length"):
            mine, its = getattr(job.config, field), getattr(again.config, field)
            assert _plain(its) == _plain(mine), (field, words)
        findings = lint_target(str(script)).findings
        assert not [f for f in findings if f.level is Level.ERROR], words


def _plain(value: Any) -> Any:
    """Without what a dialect settles itself: samples that are not packed are padded, and the type
    of adapters."""
    names = getattr(value, "__struct_fields__", ())
    said = {
        n: getattr(value, n) for n in names if n not in ("adapter_dtype", "double_quantization")
    }
    said |= (
        {"packing": "packed" if said["packing"] == "packed" else ""} if "packing" in said else {}
    )
    return said or value


@pytest.mark.parametrize("framework", [f for f in PROGRAMS if f != Framework.MEGATRON_SWIFT])
def test_the_file_says_what_the_options_do(tmp_path, framework) -> None:
    stack = parts_of(framework)
    job = job_of(
        Request(
            model="qwen3_8b",
            gpus="8xH100",
            framework=framework,
            overrides=TUNED["LoRA"],
            seq_length=2048,
        )
    )
    setting = stack.settings.candidates(job)[1]
    (tmp_path / "job.yaml").write_text(stack.spelling.config_file(setting, job))
    (tmp_path / "run.sh").write_text(f"{PROGRAMS[framework]} job.yaml\n")
    read = read_job(str(tmp_path / "run.sh"), {"model": "qwen3_8b", "gpus": "8xH100"})
    again = job_of(read.request)
    assert (again.config.seq_length, again.config.tuning.rank) == (2048, 32)
    assert again.config.global_batch_size == job.config.global_batch_size
    assert read.configuration.recompute == setting.spec


TYPOS = [
    ("f.yaml", "finetuning_type: lora\nlora_rnak: 8\n", "did you mean lora_rank?", Level.ERROR),
    (
        "f.yaml",
        "finetuning_type: lora\nlora_target: all\nsequence_len: 8\n",
        "drop sequence_len",
        Level.ERROR,
    ),
    ("a.yaml", "base_model: m\nlora_target_linar: true\n", "lora_target_linear?", Level.WARNING),
    ("a.yaml", "base_model: m\ncutoff_len: 8\n", "drop cutoff_len", Level.WARNING),
    ("t.yaml", "use_peft: true\nlora_target_module: a\n", "lora_target_modules?", Level.WARNING),
    ("s.sh", "swift sft --model m --train_type lora\n", "mean tuner_type?", Level.ERROR),
    ("s.sh", "swift sft --model m --lora_rnk 8\n", "did you mean lora_rank?", Level.ERROR),
    ("m.sh", "megatron sft --model m --lora_rnk 8\n", "did you mean lora_rank?", Level.ERROR),
]


@pytest.mark.parametrize(("name", "text", "fix", "level"), TYPOS)
def test_a_key_that_nobody_reads_is_told(tmp_path, name, text: str, fix: str, level) -> None:
    (tmp_path / name).write_text(text)
    (found,) = (f for f in lint_target(str(tmp_path / name)).findings if f.rule == "unknown_key")
    assert fix in found.fix
    assert found.level is level


FAULTS = [
    ("f.yaml", "finetuning_type: full\nquantization_bit: 4\n", "quantization_bit"),
    ("am.yaml", "step_scheduler: {}\ndistributed:\n  tp_sise: 2\n", "unknown_option"),
    ("f.yaml", "stage: dpo\ncutoff_len: 1\nneat_packing: true\n", "neat_packing"),
    ("a.yaml", "base_model: m\nfsdp:\n  - full_shard\n", "fsdp"),
    ("a.yaml", "base_model: m\nsample_packing: true\nrl: dpo\n", "sample_packing.rl"),
    ("a.yaml", "base_model: m\nadapter: qlora\nload_in_4bit: false\n", "qlora.load_in_4bit"),
    ("f.yaml", "cutoff_len: 1\ngradient_checkpointing: false\n", "gradient_checkpointing"),
    (
        "s.sh",
        "swift rlhf --model m --rlhf_type grpo --use_vllm true --vllm_mode colocate\n",
        "grpo_memory",
    ),
    (
        "m.sh",
        "megatron sft --model m --recompute_method uniform --recompute_granularity selective\n",
        "selective_method",
    ),
]


@pytest.mark.parametrize(("name", "text", "rule"), FAULTS)
def test_what_a_program_refuses_or_drops_is_told(tmp_path, name, text: str, rule: str) -> None:
    (tmp_path / name).write_text(text)
    assert rule in {finding.rule for finding in lint_target(str(tmp_path / name)).findings}


@pytest.mark.parametrize("name", sorted(set(dialect_names()) & {*map(str, PROGRAMS)}))
def test_names_hold_the_rows_and_every_label_is_said(name: str) -> None:
    known = names_of(name)
    tops = {row.name.partition(".")[0] for row in rows_of(name) if row.printed}
    assert not known or tops <= {*known, "trainer"}
    assert (
        label_of(name)
        in parts_of(name).spelling.title(
            job_of(Request(model="qwen3_8b", gpus="8xH100", framework=name))
        )
        or name == Framework.MEGATRON_SWIFT
    )


LOG = """+ accelerate launch --num_processes 8 --use_fsdp trl/scripts/sft.py {words}
GPU: NVIDIA H100 80GB HBM3
Traceback (most recent call last):
  File "/v/site-packages/transformers/trainer.py", line 2325, in train
    return inner_training_loop(
  File "/v/site-packages/trl/trainer/sft_trainer.py", line 1150, in compute_loss
    outputs = model(**inputs)
  File "/v/site-packages/transformers/models/qwen2/modeling_qwen2.py", line 45, in forward
    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity \
of 79.10 GiB of which 1.02 GiB is free. Of the allocated memory 76.20 GiB is allocated by PyTorch, \
and 601.2 MiB is reserved by PyTorch but unallocated.
"""


def test_a_log_is_the_dialects_and_so_is_its_fix(tmp_path, capsys) -> None:
    words = "--model_name_or_path Qwen/Qwen2.5-7B --max_length 16384 --use_peft --lora_r 8 --bf16"
    (tmp_path / "run.log").write_text(LOG.format(words=words))
    cli.main(["diagnose", str(tmp_path / "run.log")])
    page = " ".join(capsys.readouterr().out.split())
    assert "--framework trl" in page
    assert "tuning.adapter=lora" in page
    assert "per_device_train_batch_size" in page


def test_the_harness_runs_a_users_own_command() -> None:
    for framework in PROGRAMS:
        job = job_of(Request(model="qwen3_8b", gpus="8xH100", framework=framework))
        overrides = parts_of(framework).harness.overrides(job)
        assert {"backend=command", "framework=other"} <= {*overrides}
