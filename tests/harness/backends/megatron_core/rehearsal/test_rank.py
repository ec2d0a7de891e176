"""Ranks rehearsed for real, on fake tensors and on the CPU: toy shapes, exact bytes."""

import pytest
from msgspec.structs import replace

pytest.importorskip("megatron.core")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

import torch  # noqa: E402
from megatron.core.transformer.enums import AttnBackend  # noqa: E402
from megatron.core.transformer.moe.experts import SequentialMLP  # noqa: E402

from advisor.job.layout import ParallelLayout  # noqa: E402
from harness.backends.megatron_core.model import transformer_config  # noqa: E402
from harness.backends.megatron_core.rehearsal.rank import (  # noqa: E402
    enough_microbatches,
    rehearse,
    rehearse_fake,
)
from harness.backends.megatron_core.translate import megatron_case  # noqa: E402
from harness.measure.memory import StorageMeter  # noqa: E402
from harness.trial.result import StagePeaks  # noqa: E402
from harness.trial.trial import Device, MeasurementPlan  # noqa: E402
from tests.advisor.jobs import parallel  # noqa: E402
from tests.harness.backends.megatron_core.workloads import MOE  # noqa: E402
from tests.harness.rehearsal.toys import TRIAL  # noqa: E402

CASE = megatron_case(TRIAL.workload)
PLAN = MeasurementPlan(steps=1)
# a layer on one of two ranks: qkv, proj, fc1 (two halves), fc2, two norms
LAYER = (64 + 2 * 32) // 2 * 64 + 32 * 64 + 96 * 64 + 64 * 48 + 2 * 64
EMBEDDING = 256 // 2 * 64  # the vocabulary padded to 128 x TP


def test_static_bytes_are_the_arithmetic() -> None:
    first, last = (rehearse_fake(CASE, stage).peaks for stage in (0, 1))
    elements = 2 * LAYER + EMBEDDING
    assert first.weights == first.gradients == 2 * elements
    # fp32 main parameters and two moments over two ranks, and torch's 4-byte step counters
    assert 0 < first.optimizer - 12 * elements // 2 <= 4 * 18
    # the final norm, and the buffer's end at a multiple of 128 elements (param_and_grad_buffer.py)
    assert elements % 128 == 0
    assert last.weights == 2 * (elements + 128)
    assert first.backward > first.forward > first.weights + first.gradients + first.optimizer


def test_wide_gradients_take_four_bytes_and_need_no_copies() -> None:
    narrow = rehearse_fake(CASE, 0).peaks
    wide = rehearse_fake(CASE.changed(grad_reduce_in_fp32=True), 0).peaks
    assert wide.gradients == 2 * narrow.gradients
    copies = 4 * narrow.gradients // 2 // 2  # fp32 of half the elements
    grown = wide.gradients - narrow.gradients
    assert narrow.optimizer_step - wide.optimizer_step == copies - grown


def test_more_data_parallel_ranks_have_smaller_shards() -> None:
    two = rehearse_fake(CASE, 0).peaks.optimizer
    eight = rehearse_fake(CASE.changed(data_parallel_size=8), 0).peaks.optimizer
    none = rehearse_fake(CASE.changed(use_distributed_optimizer=False), 0).peaks.optimizer
    assert two / eight == pytest.approx(4, rel=1e-2)  # step counters
    assert none / two == pytest.approx(2, rel=1e-2)


def test_a_stage_does_not_see_the_one_before() -> None:
    alone = rehearse_fake(CASE, 1)
    rehearse_fake(CASE, 0)
    assert rehearse_fake(CASE, 1) == alone


def test_microbatches_beyond_the_steady_state_are_not_run() -> None:
    many = CASE.changed(num_microbatches=64)
    for stage in (0, 1):
        enough = enough_microbatches(many, stage)
        assert enough.num_microbatches == 4
        peaks = rehearse_fake(enough, stage).peaks
        assert rehearse_fake(many.changed(num_microbatches=9), stage).peaks == peaks


def test_an_interleaved_stage_may_come_to_its_peak_late() -> None:
    """Twice PP microbatches are not enough where a spent input of the first rounds stays."""
    many = CASE.changed(num_layers=8, num_microbatches=24, **parallel(pp=4, vpp=2))
    numbers = [enough_microbatches(many, stage).num_microbatches for stage in range(4)]
    assert numbers == [12, 16, 12, 8]
    found = [rehearse_fake(many.changed(num_microbatches=n), 1).peaks.forward for n in (8, 16, 24)]
    assert found[0] < found[1] <= found[2] <= found[1] + 4 * 8  # a loss's scalar each


def test_transformer_engine_is_given_its_kernel() -> None:
    engine = CASE.changed(transformer_impl="transformer_engine", attention_backend="unfused")
    assert transformer_config(engine).attention_backend is AttnBackend.unfused
    assert transformer_config(CASE).attention_backend is AttnBackend.auto


@pytest.fixture(scope="module")
def on_cpu() -> dict[int, StagePeaks]:
    found = {}
    for stage in (0, 1):
        others = StorageMeter()
        others.count_existing()  # what other tests have left alive
        rehearsed = rehearse(CASE, stage, Device.CPU, PLAN, 128)
        assert len(rehearsed.seconds) == 1
        assert rehearsed.phases == (), "of a GPU alone"
        peaks = rehearsed.peaks
        found[stage] = replace(peaks, backward=peaks.backward - others.live_bytes)
    return found


@pytest.mark.parametrize("stage", [0, 1])
def test_a_real_rank_holds_what_the_fake_one_holds(stage, on_cpu) -> None:
    """The step counters of torch's AdamW included."""
    real, fake = on_cpu[stage], rehearse_fake(CASE, stage).peaks
    assert (real.weights, real.gradients, real.optimizer) == (
        fake.weights,
        fake.gradients,
        fake.optimizer,
    )
    assert (real.compute_seconds or 0) > 0
    assert real.reserved is None
    static = real.weights + real.gradients + real.optimizer
    # a CPU's kernels keep other tensors (fp32 norms, expanded heads): the same order of size
    assert 0.5 < (real.backward - static) / (fake.backward - static) < 4


def test_experts_of_a_rank_get_their_share_of_random_tokens(monkeypatch) -> None:
    """Half of 4 experts on each of two ranks, 2 of 4 for each of 32 tokens: 64 rows in the mean."""
    rows: list[int] = []
    forward = SequentialMLP.forward

    def spy(self: SequentialMLP, tokens: torch.Tensor, *more: torch.Tensor) -> object:
        rows.append(len(tokens))
        return forward(self, tokens, *more)

    layout = ParallelLayout(data_parallel_size=2, expert_model_parallel_size=2)
    asked = replace(TRIAL.workload, model=MOE, layout=layout)
    monkeypatch.setattr(SequentialMLP, "forward", spy)
    real = rehearse(megatron_case(asked), 0, Device.CPU, PLAN, 128).peaks
    fake = rehearse_fake(megatron_case(asked), 0).peaks
    assert (real.weights, real.optimizer) == (fake.weights, fake.optimizer)
    assert rows[-1] == 64, "on fake tensors every expert has as many as any other"
    drawn = [count for count in rows if count != 64]
    assert len(drawn) > len(rows) / 4
    assert sum(drawn) / len(drawn) == pytest.approx(64, rel=0.15)


def test_what_is_received_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage's loss is that of random hidden states, not of uninitialised memory."""
    seen: list[torch.Tensor] = []
    from harness.backends.megatron_core.model import Batch

    loss = Batch.loss
    monkeypatch.setattr(
        Batch, "loss", lambda self, losses: (seen.append(losses.detach()), loss(self, losses))[1]
    )
    rehearse(CASE, 1, Device.CPU, PLAN, 128)
    assert len(seen) == 4 * (2 + 1 + 1)  # microbatches of warm-up, timed and gauged steps
    assert all(torch.isfinite(losses).all() for losses in seen)
    assert float(seen[0].mean()) == pytest.approx(4.85, rel=0.2)  # log(128)
