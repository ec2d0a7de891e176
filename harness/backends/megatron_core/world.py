"""Megatron's process groups: of the ranks that torchrun started, or of one rank all alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import p2p_communication
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.backends.megatron_core.case import MegatronCase
from harness.backends.training_rank import COLLECTIVES
from harness.trial.trial import Device

P2P: Final[Any] = getattr(p2p_communication, "P2PCommunicator", p2p_communication)
"""What has `_communicate`, through which pipeline stages send: the module itself in 0.13."""


@contextmanager
def fake_world(case: MegatronCase, rank: int) -> Iterator[None]:
    """`rank` of the case's ranks, in a process group that sends nothing: a sum is its own part."""
    dist.init_process_group("fake", rank=rank, world_size=case.world_size, store=FakeStore())
    with _left_at_end(), _model_parallel(case):
        yield


@contextmanager
def real_world(case: MegatronCase, device: Device) -> Iterator[None]:
    """This process among those of torchrun, or alone; in a process group that is there already."""
    if dist.is_initialized():
        with _model_parallel(case):
            yield
        return
    if "RANK" in os.environ:
        dist.init_process_group(COLLECTIVES[device])
    else:
        dist.init_process_group(COLLECTIVES[device], store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    with _left_at_end(), _model_parallel(case):
        yield


@contextmanager
def _left_at_end() -> Iterator[None]:
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _model_parallel(case: MegatronCase) -> Iterator[None]:
    """Megatron's groups over the process group."""
    experts = case.has_experts
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=case.tensor_model_parallel_size,
            pipeline_model_parallel_size=case.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=case.virtual_pipeline_model_parallel_size,
            context_parallel_size=case.context_parallel_size,
            expert_model_parallel_size=case.expert_model_parallel_size if experts else 1,
            expert_tensor_parallel_size=case.expert_tensor_parallel_size if experts else None,
            create_gloo_process_groups=False,  # for checkpoints alone; none on a FakeStore
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
