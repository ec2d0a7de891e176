"""Every name of --framework has a stack that answers for itself."""

import pytest

from advisor.frameworks.names import Framework
from advisor.frameworks.registry import label_of, parts_of
from advisor.plan.recompute_plan import recomputes
from advisor.report.setting_flags import all_flags, flags_report
from advisor.request.request import Request
from advisor.search.advise import advise
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches


@pytest.mark.parametrize("framework", Framework)
def test_every_framework_has_a_stack(framework: Framework) -> None:
    stack = parts_of(framework)
    assert framework in stack.family
    assert label_of(framework)
    assert not recomputes(stack.settings.none)
    assert stack.settings.parse("none") == stack.settings.none
    assert stack.jobs.version("") == stack.jobs.version(stack.jobs.version(""))


@pytest.mark.parametrize("framework", Framework)
def test_flags_are_one_line_in_the_family(framework: Framework) -> None:
    request = Request(
        model="llama3_8b", gpus="8xH100", framework=framework, **batches(4096, 1, 8), quick=True
    )
    advice = advise(request)
    report = flags_report(advice, with_layout=True)
    assert report.endswith("\n")
    assert report.count("\n") == 1
    family = parts_of(framework).family
    for candidate in advice.candidates:
        assert tuple(all_flags(candidate.evaluation)) == family


FLAGS = {
    ("torchtitan", "0.2", "none"): "--activation_checkpoint.mode=none",
    ("torchtitan", "0.2", "selective:2"): "--activation_checkpoint.mode=selective "
    "--activation_checkpoint.selective_ac_option=2",
    ("torchtitan", "0.2", "op:torchtitan"): "--activation_checkpoint.mode=selective "
    "--activation_checkpoint.selective_ac_option=op",
    ("torchtitan", "0.2", "budget:0.5"): "--compile.enable "
    "--activation_checkpoint.mode=memory_budget --activation_checkpoint.memory_budget=0.5",
    ("torchtitan", "0.3", "full"): "activation_checkpoint:full",
    ("huggingface", "5", "none"): "",
    ("huggingface", "4", "full"): "--gradient_checkpointing True",
    ("huggingface", "5", "full+use_reentrant"): "--gradient_checkpointing True "
    "--gradient_checkpointing_kwargs '{\"use_reentrant\": true}'",
    ("huggingface", "5", "selective:3"): "--gradient_checkpointing True "
    "--gradient_checkpointing_kwargs '{\"every_n_layers\": 3}'",
}


@pytest.mark.parametrize(("framework", "version", "spec"), FLAGS)
def test_spelling(framework: str, version: str, spec: str) -> None:
    stack, job = stack_job(framework, framework_version=version)
    assert (
        stack.spelling.setting_flags(stack.settings.parse(spec), job)
        == FLAGS[framework, version, spec]
    )


def test_the_environment_names_the_allocators_option() -> None:
    for wanted in (False, True):
        override = (f"job.expandable_segments={str(wanted).lower()}",)
        stack, job = stack_job("torchtitan", overrides=override)
        expected = ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",) if wanted else ()
        assert stack.spelling.environment(stack.settings.none, job) == expected
