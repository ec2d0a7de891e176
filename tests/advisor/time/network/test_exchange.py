"""What crosses which link when tokens go to their experts: counted over every routing."""

from collections.abc import Iterator
from itertools import combinations

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import Calibration
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.layout import ParallelLayout
from advisor.models.options import FlexBackend, TokenDispatcher
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.time.rank_links import Routing, copies_of_a_token, flex_dispatcher, network, reached


def routings(routing: Routing) -> Iterator[tuple[int, ...]]:
    """Every choice of experts that a token may make, each as often as it happens."""
    size = routing.experts // routing.groups
    for groups in combinations(range(routing.groups), routing.group_topk):
        allowed = [group * size + i for group in groups for i in range(size)]
        yield from combinations(allowed, routing.topk)


def counted(routing: Routing, ranks: int, near: int) -> tuple[float, float]:
    """Mean copies into the network, and over NVLink: each token of rank 0 to n - 1 is followed."""
    network = nvlink = tokens = 0
    local = routing.experts // ranks
    for chosen in routings(routing):
        for source in range(ranks):
            tokens += 1
            targets = {expert // local for expert in chosen}
            nodes = {target // near for target in targets}
            network += len(nodes - {source // near})
            arrives = {node: node * near + source % near for node in nodes}
            nvlink += sum(target != arrives[target // near] for target in targets)
    return network / tokens, nvlink / tokens


@pytest.mark.parametrize(
    ("routing", "ranks", "near"),
    [
        (Routing(8, 2), 8, 4),
        (Routing(8, 2), 4, 2),
        (Routing(8, 3), 8, 8),
        (Routing(8, 3), 8, 1),
        (Routing(12, 2), 6, 2),
        (Routing(16, 3, 4, 2), 8, 2),
        (Routing(16, 3, 4, 2), 4, 2),
        (Routing(16, 3, 8, 3), 4, 1),
        (Routing(16, 4, 2, 1), 8, 4),
    ],
)
def test_copies_of_a_token_are_those_of_every_routing(routing, ranks, near) -> None:
    assert copies_of_a_token(routing, ranks, near) == pytest.approx(counted(routing, ranks, near))


def test_limited_routing_reaches_fewer_nodes() -> None:
    free, limited = Routing(256, 8), Routing(256, 8, 8, 4)
    assert reached(limited, 8) < reached(free, 8)
    assert 8 * reached(limited, 8) <= 4.0
    assert reached(free, 1) == reached(limited, 1) == 1.0


def moe(**changes: object) -> ModelSpec:
    toy = {
        "num_moe_experts": 16,
        "moe_router_topk": 2,
        "moe_router_num_groups": None,
        "moe_router_group_topk": None,
        "moe_token_dispatcher_type": TokenDispatcher.FLEX,
    }
    return replace(load_model("deepseek_v3"), **{**toy, **changes})


def test_the_slower_of_network_and_nvlink_counts(gpu: Gpu, calibration: Calibration) -> None:
    layout = ParallelLayout(expert_model_parallel_size=16, data_parallel_size=16)
    far, near = copies_of_a_token(Routing(16, 2), 16, 8)
    sent = flex_dispatcher(layout, moe(), gpu, calibration)
    assert sent.seconds_per_byte == pytest.approx(max(far / 5.0, near / 45.0)) == far / 5.0
    assert sent.seconds(10) == pytest.approx(0.502 + 2 * far)
    rack = replace(gpu, nvlink_domain_size=72)
    beside = flex_dispatcher(layout, moe(), rack, calibration)
    assert beside.seconds_per_byte == pytest.approx(16 * (1 - 7 / 8) * 15 / 16 / 45.0)


def test_expert_tensor_parallel_ranks_all_need_the_token(gpu, calibration) -> None:
    cut = ParallelLayout(
        expert_model_parallel_size=4, expert_tensor_parallel_size=2, data_parallel_size=8
    )
    _, near = copies_of_a_token(Routing(16, 2), 4, 4)
    assert flex_dispatcher(cut, moe(), gpu, calibration).seconds_per_byte == 2 * near / 45.0


def test_deepep_moves_what_its_sms_can(gpu: Gpu, calibration: Calibration) -> None:
    layout = ParallelLayout(expert_model_parallel_size=8, data_parallel_size=8)
    slow = replace(calibration, deepep_sm_bytes_per_second=1.0)
    _, near = copies_of_a_token(Routing(16, 2), 8, 8)
    deepep = flex_dispatcher(layout, moe(), gpu, slow)
    assert (deepep.sms, deepep.seconds_per_byte) == (20, near / 20)
    assert flex_dispatcher(layout, moe(), gpu, slow, sms=40).seconds_per_byte == near / 40
    model = moe(moe_flex_dispatcher_backend=FlexBackend.HYBRIDEP)
    hybrid = flex_dispatcher(layout, model, gpu, slow)
    assert (hybrid.sms, hybrid.seconds_per_byte) == (16, near / 45)


def test_a_token_that_stays_costs_the_fixed_time_alone(calibration: Calibration) -> None:
    layout = ParallelLayout(data_parallel_size=1)
    sent = flex_dispatcher(layout, moe(), load_gpu("H100-SXM"), calibration)
    assert sent.seconds(1e9) == sent.fixed_seconds == 0.502


def test_experts_cut_twice_are_on_the_link_of_both_groups(gpu, calibration) -> None:
    degrees = {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 4}
    found = network(ParallelLayout(data_parallel_size=16, **degrees), gpu, calibration, moe())
    assert found.expert_tensor.bytes_per_second == 45.0
    assert found.expert_tensor_and_model.bytes_per_second == 40.0
