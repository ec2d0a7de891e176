"""The kernels on a CPU: each runs, computes what it says, and rotates its inputs."""

import pytest
import torch

from harness.backends.native.modules import model as native
from harness.backends.native.modules.attention import LatentAttention
from harness.backends.native.modules.moe import MoeLayer
from harness.backends.native.regions import replays_marked
from harness.calibration.bench import kernel_runs
from harness.calibration.bench.cases import ATTENTION, LATENT_ATTENTION, Case, CaseKind
from harness.calibration.bench.kernel_runs import ON_A_GPU, POOL_ELEMENTS, Bench
from harness.calibration.bench.shapes import GROUPED_VARIANTS, HOST_CASES
from harness.trial.trial import Device

SMALL = {
    CaseKind.GEMM: (16, 32, 48),
    CaseKind.NORM: (8, 64),
    CaseKind.ADD: (8, 64),
    CaseKind.SWIGLU: (8, 64),
    CaseKind.ADAM: (512,),
    CaseKind.COPY: (4096,),
    CaseKind.GROUPED_GEMM: (3, 16, 32, 48),
    CaseKind.SUSTAINED_GEMM: (16, 32, 48),
    CaseKind.HOST_LAUNCH: (16,),
    CaseKind.HOST_LAYER: (16, 64),
    CaseKind.HOST_REPLAY: (16, 64),
    **dict.fromkeys(ATTENTION, (1, 32, 4, 2, 16)),
    **dict.fromkeys(LATENT_ATTENTION, (1, 32, 4, 24, 16)),
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Device.CPU, wanted_seconds=0.001, hold_seconds=0.01)


@pytest.mark.parametrize("kind", SMALL)
def test_every_kernel_is_timed(bench: Bench, kind: CaseKind) -> None:
    case = Case(kind=kind, sizes=SMALL[kind], variant="torch" if kind in ATTENTION else "")
    assert bench.runs(case) == (kind not in ON_A_GPU)
    sample = bench.measure(case)
    assert sample is not None, bench.refused
    assert sample.case == case
    assert 0 < sample.seconds < 10
    assert sample.runs >= (2 if kind is CaseKind.SUSTAINED_GEMM else 5)
    assert (sample.load is not None) == (kind is CaseKind.SUSTAINED_GEMM)


@pytest.mark.parametrize("variant", ["tn", "nn", "nt"])
def test_a_gemm_is_m_by_n_over_k_in_each_layout(bench: Bench, variant: str) -> None:
    m, n, k = 16, 32, 48
    case = Case(kind=CaseKind.GEMM, sizes=(m, n, k), variant=variant)
    call = kernel_runs._gemm(bench.inputs, case)
    result = call(0)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (m, n)
    assert result.dtype is torch.bfloat16
    assert 2 < result.float().std() < 14, "a sum of 48 products of unit normals: about 7"


def test_attention_is_causal_and_of_the_right_shape(bench: Bench) -> None:
    case = Case(kind=CaseKind.ATTENTION_FORWARD, sizes=(1, 32, 4, 2, 16), variant="torch")
    query, key, value = kernel_runs._heads(bench.inputs, case)
    output = kernel_runs._attend(case, query, key, value)
    assert output.shape == (1, 4, 32, 16)
    assert torch.equal(output[:, :, 0], value[:, [0, 0, 1, 1], 0]), "the first sees only itself"


def test_grouped_gemms_are_those_of_each_expert(bench: Bench, monkeypatch) -> None:
    """Both on the same numbers, at once and one by one."""
    experts, m, n, k = sizes = (3, 16, 32, 48)
    rows = torch.randn(experts * m, k, dtype=torch.bfloat16)
    weights = torch.randn(experts, n, k, dtype=torch.bfloat16)
    monkeypatch.setattr(bench.inputs, "sets", lambda *_: [(rows, weights)])
    expected = torch.cat([part @ own.t() for part, own in zip(rows.split(m), weights, strict=True)])
    for variant in GROUPED_VARIANTS:
        case = Case(kind=CaseKind.GROUPED_GEMM, sizes=sizes, variant=variant)
        result = kernel_runs._grouped_gemm(bench.inputs, case)(0)
        assert isinstance(result, torch.Tensor)
        torch.testing.assert_close(result, expected, rtol=0.02, atol=0.1)


def test_latent_attention_has_the_values_width(bench: Bench) -> None:
    case = Case(kind=CaseKind.LATENT_ATTENTION_FORWARD, sizes=(1, 32, 4, 24, 16))
    query, key, value = kernel_runs._heads(bench.inputs, case)
    assert query.shape == key.shape == (1, 32, 4, 24)
    output = kernel_runs._attend(case, query, key, value)
    assert output.shape == (1, 32, 4, 16)
    torch.testing.assert_close(output[:, 0], value[:, 0], rtol=0.02, atol=0.02)


def test_the_data_is_random_and_of_any_length(bench: Bench) -> None:
    long = bench.inputs.tensor(3, POOL_ELEMENTS)
    assert long.shape == (3, POOL_ELEMENTS)
    assert long.float().std() == pytest.approx(1.0, abs=0.01)
    assert len(set(bench.inputs.tensor(5, 7).flatten().tolist())) > 30


def test_inputs_rotate_where_they_would_stay_in_the_cache(bench: Bench) -> None:
    small, big = Case(kind=CaseKind.COPY, sizes=(4096,)), Case(kind=CaseKind.COPY, sizes=(2**29,))
    assert len(bench.inputs.sets(small, object)) == 8
    assert len(bench.inputs.sets(big, object)) == 1


def test_what_a_cpu_does_not_have(bench: Bench) -> None:
    assert not bench.runs(Case(kind=CaseKind.GEMM_FP8, sizes=(16, 16, 16)))
    assert not bench.runs(Case(kind=CaseKind.TO_DEVICE, sizes=(4096,)))
    assert not bench.runs(Case(kind=CaseKind.ADAM, sizes=(10**9,)))


@pytest.mark.parametrize(
    "error", [RuntimeError("No kernel"), AttributeError("no _grouped_mm"), ValueError("head size")]
)
def test_what_torch_refuses_gives_no_sample_and_is_no_other_ones_error(error, monkeypatch) -> None:
    def refuse(*_: object) -> object:
        raise error

    fresh = Bench(Device.CPU, wanted_seconds=0.0)
    monkeypatch.setitem(kernel_runs.CALLS, CaseKind.ADD, refuse)
    assert fresh.measure(Case(kind=CaseKind.ADD, sizes=(4, 4))) is None
    assert fresh.measure(Case(kind=CaseKind.NORM, sizes=(4, 4))) is not None
    assert fresh.refused == {"add:4x4": f"{type(error).__name__}: {error}"}


@pytest.mark.parametrize(
    "made_of", [c.variant for c in HOST_CASES if c.kind is CaseKind.HOST_LAYER]
)
def test_a_layer_is_of_its_kind_and_gives_its_gradients(bench, made_of, monkeypatch) -> None:
    made: list[native.TransformerLayer] = []

    class Seen(native.TransformerLayer):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(kernel_runs, "TransformerLayer", Seen)
    case = Case(kind=CaseKind.HOST_LAYER, sizes=(16, 64), variant=made_of)
    call = kernel_runs._layer(bench.inputs, case)
    gradients = call(0)
    (layer,) = made
    assert isinstance(layer.mlp, MoeLayer) == (made_of in ("moe", "many_experts"))
    assert isinstance(layer.self_attention, LatentAttention) == (made_of == "latent")
    assert isinstance(gradients, tuple)
    assert gradients[0].shape == (1, 16, 64)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert len(call(1)) == len(gradients)


def test_a_layer_is_replayed_where_the_case_says_so(bench: Bench) -> None:
    replays: list[bool] = []
    for kind in (CaseKind.HOST_LAYER, CaseKind.HOST_REPLAY):
        call = kernel_runs._layer(bench.inputs, Case(kind=kind, sizes=(16, 64), variant="dense"))
        with replays_marked(replays.append):
            call(0)
    assert replays == [True, False]


def test_a_launch_is_one_addition_and_no_more_than_a_gpu_queues(bench: Bench) -> None:
    result = kernel_runs._launch(bench.inputs, Case(kind=CaseKind.HOST_LAUNCH, sizes=(7,)))(0)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (7,)
    assert kernel_runs.HOST_CALLS[CaseKind.HOST_LAUNCH] < 1024
