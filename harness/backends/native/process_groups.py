"""Process groups of one rank: tensor, data and pipeline parallelism over one DeviceMesh."""

import os

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from advisor.job.layout import ParallelLayout
from harness.backends.training_rank import COLLECTIVES, check_processes, torch_device
from harness.trial.trial import Device


class Groups(Struct, frozen=True, kw_only=True):
    """This rank's place: device, degrees and ranks; groups are None where the degree is 1.
    Tensor-parallel ranks are neighbours, then come data and pipeline parallel ones (Megatron's
    order tp-dp-pp). `owns_world`: the process group was made here, and ends with the step."""

    device: torch.device
    mesh: DeviceMesh | None = None
    tensor: dist.ProcessGroup | None = None
    data: dist.ProcessGroup | None = None
    pipeline: dist.ProcessGroup | None = None
    tensor_rank: int = 0
    data_rank: int = 0
    stage: int = 0
    owns_world: bool = False

    def close(self) -> None:
        """Leave the process group that `make_groups` entered."""
        if self.owns_world:
            dist.destroy_process_group()


def make_groups(layout: ParallelLayout, device: Device) -> Groups:
    """Groups from RANK, WORLD_SIZE and LOCAL_RANK; UserError where the layout does not fit them."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    check_processes(layout, world_size)
    where = torch_device(device)
    if world_size == 1:
        return Groups(device=where)
    owns_world = not dist.is_initialized()
    if owns_world:
        dist.init_process_group(COLLECTIVES[device])
    pipeline, tensor = layout.pipeline_model_parallel_size, layout.tensor_model_parallel_size
    sizes, names = (pipeline, layout.data_parallel_size, tensor), ("pp", "dp", "tp")
    mesh = init_device_mesh(str(device), sizes, mesh_dim_names=names)
    pp, dp, tp = (mesh.get_group(name) if sizes[k] > 1 else None for k, name in enumerate(names))
    return Groups(
        device=where,
        mesh=mesh,
        tensor=tp,
        data=dp,
        pipeline=pp,
        owns_world=owns_world,
        tensor_rank=mesh.get_local_rank("tp"),
        data_rank=mesh.get_local_rank("dp"),
        stage=mesh.get_local_rank("pp"),
    )
