"""The kernels on a CPU: each runs, computes what it says, and rotates its inputs."""

import pytest
import torch

from harness.calibrate.bench import kernels
from harness.calibrate.bench.cases import ATTENTION, Case, Kind
from harness.calibrate.bench.kernels import Bench
from harness.calibrate.bench.timer import time_call
from harness.trial import Device

SMALL = {
    Kind.GEMM: (16, 32, 48), Kind.NORM: (8, 64), Kind.ADD: (8, 64), Kind.SWIGLU: (8, 64),
    Kind.ADAM: (512,), Kind.COPY: (4096,),
    **dict.fromkeys(ATTENTION, (1, 32, 4, 2, 16)),
}  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Device.CPU, wanted_seconds=0.001)


@pytest.mark.parametrize("kind", SMALL)
def test_every_kernel_is_timed(bench: Bench, kind: Kind) -> None:
    case = Case(kind=kind, sizes=SMALL[kind], variant="torch" if kind in ATTENTION else "")
    assert bench.runs(case)
    sample = bench.measure(case)
    assert sample is not None
    assert sample.case == case
    assert 0 < sample.seconds < 10
    assert sample.runs >= 5


@pytest.mark.parametrize("variant", ["tn", "nn", "nt"])
def test_a_gemm_is_m_by_n_over_k_in_each_layout(bench: Bench, variant: str) -> None:
    m, n, k = 16, 32, 48
    call = kernels._gemm(bench, Case(kind=Kind.GEMM, sizes=(m, n, k), variant=variant))
    result = call(0)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (m, n)
    assert result.dtype is torch.bfloat16
    assert 2 < result.float().std() < 14, "a sum of 48 products of unit normals: about 7"


def test_attention_is_causal_and_of_the_right_shape(bench: Bench) -> None:
    case = Case(kind=Kind.ATTENTION_FORWARD, sizes=(1, 32, 4, 2, 16), variant="torch")
    query, key, value = kernels._heads(bench, case)
    output = kernels._attend(case, (query, key, value))
    assert output.shape == (1, 4, 32, 16)
    assert torch.equal(output[:, :, 0], value[:, [0, 0, 1, 1], 0]), "the first sees only itself"


def test_the_data_is_random_and_of_any_length(bench: Bench) -> None:
    long = bench.tensor(3, kernels._POOL_ELEMENTS)
    assert long.shape == (3, kernels._POOL_ELEMENTS)
    assert long.float().std() == pytest.approx(1.0, abs=0.01)
    assert len(set(bench.tensor(5, 7).flatten().tolist())) > 30


def test_inputs_rotate_where_they_would_stay_in_the_cache(bench: Bench) -> None:
    small, big = Case(kind=Kind.COPY, sizes=(4096,)), Case(kind=Kind.COPY, sizes=(2**29,))
    assert len(bench.inputs(small, object)) == 8
    assert len(bench.inputs(big, object)) == 1


def test_what_a_cpu_does_not_have(bench: Bench) -> None:
    assert not bench.runs(Case(kind=Kind.GEMM_FP8, sizes=(16, 16, 16)))
    assert not bench.runs(Case(kind=Kind.TO_DEVICE, sizes=(4096,)))
    assert not bench.runs(Case(kind=Kind.ADAM, sizes=(10**9,)))


def test_what_torch_refuses_gives_no_sample(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setitem(kernels._BUILDERS, Kind.ADD, refuse)
    assert bench.measure(Case(kind=Kind.ADD, sizes=(4, 4))) is None


def test_a_long_call_is_timed_a_few_times_and_a_short_one_often() -> None:
    calls: list[int] = []
    few = time_call(calls.append, Device.CPU, wanted_seconds=0.0)
    assert few.runs == 5
    assert calls == [0, 1, 0, 1, 2, 3, 4], "two to warm up"
    assert time_call(calls.append, Device.CPU, wanted_seconds=1.0).runs == 100
