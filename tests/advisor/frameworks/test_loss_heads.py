"""Heads of a job: which are legal, what is said of them, which need less, and their time."""

import pytest
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.loss_heads import check_head, head_changes, known_heads
from advisor.frameworks.registry import parts_of
from advisor.job.job import Job
from advisor.job.loss_head import HeadImplementation, LossHead, RouterAuxLoss
from advisor.job.tuning import Tuning
from advisor.layers.heads.chunked import CHUNKED, chunked
from advisor.layers.heads.implementations import HEADS
from advisor.layers.shape import RankShape
from advisor.layers.transformer import head_groups, head_operators
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model
from advisor.report.header import run_words
from tests.advisor.frameworks.torch.jobs import stack_job
from tests.advisor.jobs import batches, evaluator_of

QWEN = replace(load_model("qwen3_4b"), transformer_impl=TransformerImpl.TRANSFORMERS)
MEGATRON = replace(QWEN, transformer_impl=TransformerImpl.TRANSFORMER_ENGINE)


def shape(name: str, model=QWEN, **more) -> RankShape:
    head = LossHead(implementation=HeadImplementation(name))
    return RankShape(model=model, seq_length=8192, micro_batch_size=1, head=head, **more)


def job_with(head: str) -> Job:
    given = {"model": "qwen3_4b", "gpus": "8xH100", **batches(8192, 1, 64)}
    return stack_job("huggingface", overrides=(f"head.implementation={head}",), **given)[1]


def test_every_implementation_has_operators() -> None:
    own = {HeadImplementation.DEFAULT, HeadImplementation.TRANSFORMERS, HeadImplementation.LIGER}
    assert {*HEADS} | own == {*HeadImplementation}
    for model in (QWEN, MEGATRON):
        for name in known_heads(model):
            groups = head_groups(shape(name, model))
            assert sum(one.gemm is not None for _, group in groups for one in group) == 1, name


@pytest.mark.parametrize("name", CHUNKED)
def test_a_frozen_output_layer_has_no_gradient(name: HeadImplementation) -> None:
    trained, frozen = shape(name), shape(name, tuning=Tuning(freeze_output=True))
    source = head_operators(trained)[0].outputs[0]
    ours, theirs = chunked(trained, source)[-1], chunked(frozen, source)[-1]
    assert theirs.weight_gradient_bytes == 0
    assert not any("weight_gradient" in one.name for one in theirs.saved)
    assert theirs.forward_workspace <= ours.forward_workspace


def test_a_chunk_is_of_the_size_that_is_asked_for() -> None:
    usual = shape("prime_rl")
    small = replace(usual, head=replace(usual.head, chunk_size=1024))
    source = head_operators(usual)[0].outputs[0]
    (many,), (few,) = chunked(usual, source), chunked(small, source)
    assert few.forward_workspace * 8 == many.forward_workspace
    assert few.extra_backward_bytes > many.extra_backward_bytes  # more sums of gradients


@pytest.mark.parametrize(
    ("model", "head", "line"),
    [
        (QWEN, {"implementation": "slime"}, "slime: is not modelled after PyTorch's layers"),
        (MEGATRON, {"implementation": "trl"}, "trl: is not modelled after Megatron's layers"),
        (
            MEGATRON,
            {"logits_to_keep": 5},
            "head.logits_to_keep = 5: is not an option of Megatron's",
        ),
        (
            MEGATRON,
            {"router_aux_loss": RouterAuxLoss.STACKED},
            "head.router_aux_loss = stacked: is not an option of Megatron's",
        ),
    ],
)
def test_wrong_heads(model, head, line) -> None:
    name = HeadImplementation(head.pop("implementation", "default"))
    config = replace(job_with("default").config, head=LossHead(implementation=name, **head))
    with pytest.raises(UserError, match=line):
        check_head(model, config)


def test_whole_heads_are_offered_those_in_chunks() -> None:
    job = job_with("verl")
    made = [one.make().config.head.implementation for one in head_changes(job)]
    assert made == ["verl_fused", "verl_triton"]
    offered = [one.words for one in parts_of("huggingface").jobs.job_changes(job)]
    assert "head.implementation=verl_fused (use_fused_kernels)" in offered
    assert "head verl" in run_words(job)
    assert not [*head_changes(job_with("trl"))]


def test_chunks_need_less_and_compute_the_logits_again() -> None:
    def of(head: str):
        return evaluator_of(job_with(head)).evaluate(parts_of("huggingface").settings.parse("full"))

    whole, parts = of("transformers"), of("trl")
    assert parts.peak_reserved_bytes < 0.8 * whole.peak_reserved_bytes
    again = parts.detail.hardware_flops_per_step - whole.detail.hardware_flops_per_step
    assert again == 2 * 8192 * 64 * QWEN.vocab_size * QWEN.hidden_size


def test_words() -> None:
    assert LossHead().words == ""
    head = LossHead(implementation=HeadImplementation.TRL, chunk_size=2048, temperature=0.7)
    assert head.words == "trl, chunks of 2048 tokens, temperature 0.7"
