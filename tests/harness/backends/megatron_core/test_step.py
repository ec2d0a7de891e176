"""Megatron's real training step, on the CPU, in this process alone or with a second rank."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

import torch  # noqa: E402

from advisor.job.layout import ParallelLayout  # noqa: E402
from advisor.models.layer_pattern import LayerPattern  # noqa: E402
from advisor.models.options import TokenDispatcher  # noqa: E402
from advisor.plan.flops import model_flops  # noqa: E402
from harness.backends.megatron_core import build  # noqa: E402
from harness.trial.result import Phase  # noqa: E402
from tests.advisor.toys import latent  # noqa: E402
from tests.harness.backends.megatron_core.ranks import train  # noqa: E402
from tests.harness.backends.megatron_core.workloads import GPT, LLAMA, MOE, workload  # noqa: E402
from tests.harness.backends.native.cases import Phases  # noqa: E402
from tests.harness.drive import two_ranks  # noqa: E402

RANKS = Path(__file__).with_name("ranks.py")


def losses(recompute: str = "none", steps: int = 3, **changes: object) -> list[float]:
    step = build(workload(recompute=recompute, **changes), 1234)
    try:
        return [step.run(Phases()) for _ in range(steps)]
    finally:
        step.close()


def test_loss_goes_down_and_recompute_does_not_change_it() -> None:
    """The same kernels on the same numbers: equal to the bit."""
    plain = losses(steps=6)
    assert plain[0] == pytest.approx(4.85, rel=0.05)  # log(128): the start knows nothing
    assert plain[-1] < plain[0] - 0.3
    for spec in ("selective:mlp,layernorm", "full:uniform:2", "full:block:1"):
        assert losses(spec) == plain[:3], spec


def test_latent_attention_and_further_tokens_train_the_same_under_recompute() -> None:
    """Output-discarding replays of the up-projections, and those of multi-token prediction."""
    model = latent(LLAMA, 16, 16, 8, 16, q_lora_rank=32, mtp_num_layers=1)
    plain = losses(model=model)
    assert plain[-1] < plain[0]
    for spec in ("selective:mla_up_proj,layernorm,mlp", "full:uniform:1"):
        assert losses(spec, model=model) == plain, spec


def test_experts_are_routed_again_as_before() -> None:
    """By either dispatcher; shared experts, a bias for balance, and a first layer without."""
    plain = losses(model=MOE, steps=4)
    assert plain[-1] < plain[0] - 0.3
    assert losses("full:uniform:1", model=MOE) == plain[:3]
    deepseek = replace(
        MOE,
        moe_layer_freq=LayerPattern("[0,1]"),
        moe_shared_expert_intermediate_size=32,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_token_dispatcher_type=TokenDispatcher.ALLGATHER,
        moe_router_dtype="fp32",
    )
    plain = losses(model=deepseek)
    assert plain[-1] < plain[0]
    for spec in ("selective:moe", "selective:shared_experts,mlp"):
        assert losses(spec, model=deepseek) == plain, spec


def test_a_gpt_with_dropout_replays_its_random_numbers() -> None:
    """The replay draws the forward's masks again: full recompute trains as none does."""
    plain = losses(model=GPT)
    assert plain[-1] < plain[0]
    assert losses("full:uniform:1", model=GPT) == plain


def test_a_step_tells_its_phases_flops_and_stage() -> None:
    asked = workload()
    step, phases = build(asked, 1), Phases()
    try:
        step.run(phases)
        assert phases.seen == [*[Phase.FORWARD, Phase.BACKWARD] * 2, Phase.OPTIMIZER]
        assert step.stage == 0
        assert step.flops().model == model_flops(LLAMA, 32, 2, 128)
        assert step.saved_bytes_per_layer() is None
    finally:
        step.close()


def test_closing_leaves_torch_as_it_was() -> None:
    before = torch.cuda.current_device
    step = build(workload(model=replace(LLAMA, num_layers=1)), 1)
    assert torch.cuda.current_device is not before
    step.close()
    assert torch.cuda.current_device is before
    assert not torch.distributed.is_initialized()


def test_a_layout_of_more_ranks_than_there_are_is_refused() -> None:
    asked = workload(layout=ParallelLayout(data_parallel_size=2))
    with pytest.raises(Exception, match="WORLD_SIZE"):
        build(asked, 1)
    assert not torch.distributed.is_initialized()


def test_two_ranks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loss on both; data-parallel ranks with half the batch each train as one with all."""
    store = tmp_path / "store"
    for name, value in (("PYTHONWARNINGS", "ignore"), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    first, second = two_ranks(str(RANKS), str(store), first=lambda: train(0, store))
    assert first == json.loads(second)
    assert set(first) == {"tp", "pp", "dp", "ep"}
    assert all(found[-1] < found[0] for found in first.values())
    # bf16 gradients, summed in another order
    assert first["dp"] == pytest.approx(losses(steps=4), rel=1e-3)
