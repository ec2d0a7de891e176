"""Dialects of reinforcement learning: examples as they are read, printed and read again, and what
each of them drops or replaces."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from advisor.api.admission import admission
from advisor.base.errors import UserError
from advisor.base.rule import Level, Verdict
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job, JobConfig
from advisor.lint.request_from import ReadJob, read_job
from advisor.lint.target import lint_target
from advisor.request.origin import changes
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER / "examples"
EXPECTED = yaml.safe_load((FOLDER / "expected.yaml").read_text())
FAULTS = yaml.safe_load((FOLDER / "faults.yaml").read_text())
USUAL = yaml.safe_load((FOLDER / "usual.yaml").read_text())
STARTS = {
    "verl": "python -m verl.trainer.main_ppo actor_rollout_ref.model.path={}",
    "verl_sft": "torchrun -m verl.trainer.sft_trainer model.path={}",
    "prime_rl_sft": "sft @ none.toml --model.name {}",
    "nemo_rl_sft": "python examples/run_sft.py policy.model_name={}",
    "openrlhf_sft": "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path {}",
    "openrlhf_dpo": "deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path {}",
    "slime": "python train.py --hf-checkpoint {}",
    "prime_rl": "rl @ none.toml --model.name {}",
    "nemo_rl": "python examples/run_grpo.py policy.model_name={}",
    "openrlhf": "python -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path {}",
}


UNPREDICTED = {"model.ac.targets", "trainer.model.ac.targets"}


def read(path: Path) -> ReadJob:
    return read_job(str(path), {"gpus": "8xH100"})


def job_of(request: Request) -> Job:
    found = resolve(request)
    assert found.layout is not None
    return found.job(found.layout)


def text(value: Any) -> Any:
    items = [*value] if isinstance(value, list | tuple) else value
    return str(items) if isinstance(items, str) else items


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_read(name: str) -> None:
    read_one = read(EXAMPLES / name).configuration
    said = {path: text(one.value) for path, one in read_one.values.items()}
    said |= {"framework": str(read_one.framework), "recompute": read_one.recompute}
    said["gpus"] = read_one.num_gpus
    assert {path: said.get(path) for path in EXPECTED[name]} == EXPECTED[name]
    assert {one.written for one in read_one.untaken} <= UNPREDICTED


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_is_held_against_an_example(name: str) -> None:
    found = lint_target(str(EXAMPLES / name)).findings
    bad = [f for f in found if f.level is not Level.NOTE and f.verdict is not Verdict.NOT_MODELLED]
    assert {f.rule for f in bad} <= {"core_attn_under_flash"}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_printed_is_the_same_job(name: str, tmp_path: Path) -> None:
    read_one = read(EXAMPLES / name)
    gpus = f"{read_one.configuration.num_gpus or 8}xH100"
    request = read_job(str(EXAMPLES / name), {"gpus": gpus}).request
    job, framework = job_of(request), str(request.framework)
    stack = parts_of(framework)
    setting = stack.settings.parse(read_one.configuration.recompute or "none")
    own = framework.removesuffix("_megatron")
    start = STARTS.get(f"{own}_{job.config.rl.algorithm}", STARTS[own])
    start = start.format(f"/models/{request.model}")
    flags = stack.spelling.layout_flags(job), stack.spelling.setting_flags(setting, job)
    script = tmp_path / "train.sh"
    script.write_text(" ".join((start, *flags)) + "\n")
    again = read_job(str(script), {"gpus": gpus})
    other = job_of(again.request)
    found = changes(job, other) if job != other else {}
    assert {path: values for path, values in found.items() if path not in UNPRINTED} == {}
    assert again.configuration.recompute == (read_one.configuration.recompute or "none")


@pytest.mark.parametrize("dialect", ["verl", "openrlhf", "prime_rl"])
def test_an_adapter_of_the_usual_rank_is_printed(dialect: str) -> None:
    """It is what switches the adapter on there."""
    request = Request(
        model="qwen3_8b", gpus="8xH100", framework=dialect, overrides=("tuning.adapter=lora",)
    )
    job = job_of(request)
    flags = parts_of(job.config.framework).spelling.layout_flags(job).replace("=", " ").split()
    (rank,) = (flags[at + 1] for at, flag in enumerate(flags) if "rank" in flag)
    assert rank == "16" == str(job.config.tuning.rank)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "nemo_rl_base.yaml"])
def test_an_example_is_answered(name: str) -> None:
    found = read(EXAMPLES / name)
    job = job_of(
        read_job(
            str(EXAMPLES / name), {"gpus": f"{found.configuration.num_gpus or 8}xH100"}
        ).request
    )
    setting = parts_of(job.config.framework).settings.parse(found.configuration.recompute or "none")
    assert Evaluator(job, load_calibration(job.gpu)).evaluate(setting).step_time_seconds > 0


UNPRINTED = (
    "model.attention_backend",
    "layout.expert_tensor_parallel_size",
    "model.moe_aux_loss_coeff",
)
"""What a recipe of Bridge decides, a degree that no expert has, and what changes nothing here."""


@pytest.mark.parametrize(
    ("dialect", "rule"),
    [(dialect, rule) for dialect, rules in FAULTS.items() for rule in rules if rule != "start"],
)
def test_what_a_dialect_drops_is_found(dialect: str, rule: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    words = FAULTS[dialect]
    script.write_text(f"{words['start']} {words[rule]}\n")
    assert rule in {finding.rule for finding in lint_target(str(script)).findings}
    script.write_text(f"{words['start']}\n")
    assert rule not in {finding.rule for finding in lint_target(str(script)).findings} - {
        "micro_batch",
        "batch",
    }


@pytest.mark.parametrize("asked", USUAL)
def test_a_dialect_without_a_file_has_its_own_defaults(asked: str) -> None:
    framework, *pairs = asked.split()
    found = resolve(
        Request(model="qwen3_8b", gpus="8xH100", framework=framework, overrides=tuple(pairs))
    )
    said = {path: text(value_of_path(found.config, path)) for path in USUAL[asked]}
    assert said == USUAL[asked]
    given = {pair.partition("=")[0] for pair in pairs}
    others = {path: str(found.origins[path]) for path in said if path in found.origins}
    assert {path: kind == "given" for path, kind in others.items()} == {
        path: path in given for path in others
    }


@pytest.mark.parametrize(
    "asked", ["verl dpo", "verl_megatron dpo", "llama_factory gspo", "axolotl ppo", "slime dpo"]
)
def test_an_algorithm_that_a_dialect_lacks_is_refused(asked: str) -> None:
    framework, kind = asked.split()
    request = Request(model="qwen3_8b", gpus="8xH100", framework=framework)
    with pytest.raises(UserError, match=f"rl.algorithm = {kind}: is not in {framework[:4]}"):
        resolve(replace(request, overrides=(f"rl.algorithm={kind}",)))


def value_of_path(config: JobConfig, path: str) -> Any:
    group, _, name = path.partition(".")
    return getattr(getattr(config, group), name)


def test_names_of_older_releases_are_read_and_refused_once(tmp_path: Path) -> None:
    script, words = tmp_path / "train.sh", "--pretrain Qwen/Qwen3-8B --zero_stage 3"
    script.write_text(f"python -m openrlhf.cli.train_ppo_ray {words} --micro_train_batch_size 2\n")
    job = job_of(read(script).request)
    assert (job.model.name, job.config.micro_batch_size) == ("qwen3_8b", 2)
    assert job.layout.data_parallel_sharding == "full"
    (fault,) = lint_target(str(script)).findings
    assert "--ds.zero_stage" in fault.fix


@pytest.mark.parametrize("asked", ["verl", "openrlhf", "prime_rl", "llama_factory", "fsdp2"])
def test_a_job_without_a_file_has_the_recompute_of_its_dialect(asked: str) -> None:
    found = admission(Request(model="qwen3_8b", gpus="8xH100", framework=asked), None)
    usual = {"verl": "full", "prime_rl": "full+offload", "llama_factory": "full"}
    assert found.recompute == usual.get(asked, "none")


def test_what_a_caller_adds_decides_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text((EXAMPLES / "verl_vl_7b.sh").read_text())
    found = read(script)
    assert [note.text for note in found.configuration.unread] == ["$@"]
    (images,) = admission(found.request, found.configuration).unknown
    assert "the tower does not run" in images
