"""The step as the harness drives it, and the whole model's account."""

import os

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from cases import GPT, LLAMA, Phases, workload  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

from advisor.base.errors import UserError  # noqa: E402
from advisor.job.layout import ParallelLayout  # noqa: E402
from advisor.layers.parameters import count_parameters  # noqa: E402
from advisor.layers.transformer import embedding_operators, head_operators  # noqa: E402
from advisor.plan.flops import model_flops  # noqa: E402
from advisor.plan.recompute_plan import kept_tensors  # noqa: E402
from harness.backends.native import build  # noqa: E402
from harness.backends.native.predict import native_shape, predict_layer  # noqa: E402
from harness.backends.native.probe import _ATTENTION_FLOPS, SavedMeter  # noqa: E402
from harness.backends.native.step import build_step  # noqa: E402
from harness.measure.training_step import TrainingStep  # noqa: E402
from harness.trial.result import Phase  # noqa: E402


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_loss_goes_down(model) -> None:
    step: TrainingStep = build(workload(model, "selective:mlp"), 1)
    losses = [step.run(Phases()) for _ in range(12)]
    assert losses[0] == pytest.approx(5.55, abs=0.1)  # log of 256 rows, nearly uniform
    assert losses[-1] < losses[0] - 0.7
    step.close()


def test_phases_of_a_step() -> None:
    recorder = Phases()
    build(workload(LLAMA), 1).run(recorder)
    one = ["forward", "backward"]
    assert [str(phase) for phase in recorder.seen] == [*one, *one, "optimizer"]


def test_same_seed_same_losses_and_counting_changes_none() -> None:
    one = workload(GPT, "selective:core_attn")
    plain, counted = build_step(one, 5), build_step(one, 5)
    expected = [plain.run(Phases()) for _ in range(1)]
    torch.manual_seed(5)
    assert counted.saved_bytes_per_layer() > 0
    assert [counted.run(Phases())] == expected
    assert build_step(one, 6).run(Phases()) != expected[0]


def test_a_count_that_fails_leaves_the_models_flops(monkeypatch, capsys) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("heads differ")

    step = build_step(workload(LLAMA), 1)
    monkeypatch.setattr("harness.backends.native.probe.count", fails)
    assert step.saved_bytes_per_layer() is None
    flops = step.flops()
    assert flops.model == flops.hardware > 0
    assert flops.replayed_per_layer is None
    assert capsys.readouterr().err.count("AssertionError('heads differ')") == 1


def test_the_counter_knows_every_attention_of_a_gpu() -> None:
    """torch 2.11's own formula of the backward refuses grouped keys and values."""
    named = (
        op for op in flop_registry if "scaled_dot_product" in str(op) and "for_cpu" not in str(op)
    )
    for op in named:
        count = _ATTENTION_FLOPS[op]
        backward = "backward" in str(op)
        query, grouped = [2, 8, 64, 16], [2, 2, 64, 16]
        seen = count(query, query, grouped, grouped) if backward else count(query, grouped, grouped)
        assert seen == (0 if backward else 2 * 8 * 64 * 64 * 32), op


def test_microbatches_add_up_to_the_batch() -> None:
    small = build_step(workload(LLAMA, micro_batch_size=1), 2, dtype=torch.float32)
    large = build_step(workload(LLAMA, micro_batch_size=4), 2, dtype=torch.float32)
    for step in (small, large):
        step.forward_backward(Phases())
    for name, parameter in small.model.named_parameters():
        torch.testing.assert_close(parameter.grad, large.model.get_parameter(name).grad)


@pytest.mark.parametrize(
    ("recompute", "replays"), [("none", 0), ("full:block:1", 1), ("full:uniform:1", 2)]
)
def test_replays_of_the_backward_are_reported(recompute: str, replays: int) -> None:
    """Two layers and one microbatch: each replayed layer begins and ends once."""
    recorder = Phases()
    one = workload(LLAMA, micro_batch_size=4, recompute=recompute)
    build_step(one, 1).run(recorder)
    within = [Phase.REPLAY, Phase.BACKWARD] * replays
    assert recorder.seen == [Phase.FORWARD, Phase.BACKWARD, *within, Phase.OPTIMIZER]


def test_parameters_are_the_advisors_and_have_megatrons_names() -> None:
    for model in (LLAMA, GPT, replace(LLAMA, qk_layernorm=True, add_qkv_bias=True)):
        step = build_step(workload(model), 1)
        parameters = dict(step.model.named_parameters())
        assert sum(p.numel() for p in parameters.values()) == count_parameters(model)
    layer = "decoder.layers.1."
    for name in (
        *("input_layernorm.weight", "self_attention.linear_qkv.weight"),
        *("self_attention.linear_proj.weight", "pre_mlp_layernorm.weight", "mlp.linear_fc1.weight"),
        "mlp.linear_fc2.weight",
    ):
        assert layer + name in parameters
    assert {
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    } <= set(parameters)


def test_states_are_fp32_over_16_bit_parameters() -> None:
    step = build_step(workload(LLAMA), 1)
    step.run(Phases())
    (bucket,) = step.optimizer._buckets
    states = [value for state in bucket._adam.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in (*states, *bucket.masters)} == {torch.float32}
    for parameter, master in zip(bucket.parameters, bucket.masters, strict=True):
        assert parameter.dtype is torch.bfloat16
        assert not parameter.grad.any()
        assert master.grad is None
        assert torch.equal(parameter, master.bfloat16())


def test_flops_of_a_step() -> None:
    one = workload(LLAMA, "full:block:1")
    flops = build_step(one, 1).flops()
    assert flops.model == model_flops(LLAMA, 32, 4, 256)
    replayed = predict_layer(one)[1]
    assert flops.replayed_per_layer == replayed
    assert flops.hardware == flops.model + replayed * LLAMA.num_layers * 2  # microbatches


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_the_ends_keep_what_the_advisor_says(model) -> None:
    """Embedding and head next to the layers: final norm, output layer, fp32 softmax, targets."""
    one = workload(model)
    step = build_step(one, 1)
    meter, tokens = SavedMeter(), step._tokens[:2]
    inputs = tokens[:, :-1].contiguous()
    with meter.scope():
        loss = step.model.loss(step.model(inputs), tokens[:, 1:])
    assert loss.requires_grad
    shape = native_shape(one)
    ends = kept_tensors(embedding_operators(shape), ()) | kept_tensors(head_operators(shape), ())
    expected = sum(tensor.num_bytes for tensor in ends.values())
    expected += one.model.num_layers * predict_layer(one)[0]
    assert meter.num_bytes == expected + inputs.nbytes  # the lookup keeps its token ids


def test_layout_must_fit_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "WORLD_SIZE" not in os.environ
    with pytest.raises(UserError, match="number of processes, WORLD_SIZE = 1"):
        build(workload(LLAMA, layout=ParallelLayout(tensor_model_parallel_size=2)), 1)
