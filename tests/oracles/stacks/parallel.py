"""A block of torchtitan cut by tensor and expert parallelism, on one fake rank of a fake group."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import loss_parallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from advisor.layers.shape import RankShape

from .blocks import block
from .expert_blocks import titan_arguments
from .fsdp import measured_step
from .kernels import GpuKernels
from .measure import Measured, passes
from .meter import LiveBytes
from .titan import import_titan

RANKS = 8


class BalancedRouting(TorchFunctionMode):
    """Inside this mode every rank sends as many rows to every rank of its experts' group: numbers
    that the host reads."""

    def __init__(self, shape: RankShape) -> None:
        super().__init__()
        tokens = shape.tokens // (shape.tp if shape.expert_tensor_parallel_size == 1 else 1)
        self._ranks = shape.expert_model_parallel_size
        self._rows = tokens * shape.model.moe_router_topk // self._ranks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist and args[0].numel() == self._ranks:
            return [self._rows] * self._ranks
        return self._rows if func is torch.Tensor.item else func(*args, **(kwargs or {}))


@contextmanager
def fake_ranks(number: int) -> Iterator[None]:
    """A group of `number` ranks of which only this one exists. DTensor finds the shapes of whole
    tensors by running operators on them, which no mode is to see."""
    name = "_propagate_tensor_meta_non_cached"
    before = getattr(ShardingPropagator, name)

    def unseen(*args: Any) -> Any:
        with _disable_current_modes():
            return before(*args)

    dist.init_process_group("fake", rank=0, world_size=number, store=FakeStore())
    setattr(ShardingPropagator, name, unseen)
    try:
        yield
    finally:
        setattr(ShardingPropagator, name, before)
        dist.destroy_process_group()


Meshes = dict[str, Any]


def meshes(shape: RankShape) -> Meshes:
    """Those of torchtitan's ParallelDims that have more than one rank; made before all fakes."""
    tp, ep = shape.tp, shape.expert_model_parallel_size
    etp = shape.expert_tensor_parallel_size if ep > 1 else 1
    world = dist.get_world_size()
    dense = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("fsdp", "tp"))
    sparse = init_device_mesh(
        "cpu", (world // (ep * etp), ep, etp), mesh_dim_names=("efsdp", "ep", "etp")
    )
    return {
        "tp": dense["tp"] if tp > 1 else None,
        "ep": sparse["ep"] if ep > 1 else None,
        "etp": sparse["etp"] if etp > 1 else None,
        "ep_etp": sparse["ep", "etp"] if etp > 1 else None,
    }


def cut(model: nn.Module, shape: RankShape, among: Meshes) -> None:
    """torchtitan's own plans of TP, EP and both, on `model`."""
    package = "qwen3" if shape.model.qk_layernorm else "llama3"
    if shape.model.multi_latent_attention:
        package = "deepseek_v3"
    module = import_titan(f"models.{package}.infra.parallelize")
    if among["tp"] is not None:
        apply = module.apply_tp if package == "llama3" else module.apply_non_moe_tp
        rest = {"enable_async_tp": False} if package == "qwen3" else {}
        apply(
            model,
            among["tp"],
            loss_parallel=True,
            enable_float8_tensorwise_tp=False,
            cp_enabled=False,
            **rest,
        )
    if shape.model.num_moe_experts is not None and (among["tp"] or among["ep"]) is not None:
        import_titan("models.llama4.infra.parallelize").apply_moe_ep_tp(
            model, **{f"{name}_mesh": mesh for name, mesh in among.items()}
        )


class _Model(nn.Module):
    """Blocks between the ends that the plans of parallelism name."""

    def __init__(self, hidden: int, vocabulary: int, **blocks: nn.Module) -> None:
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(vocabulary, hidden), nn.RMSNorm(hidden)
        self.output = nn.Linear(hidden, vocabulary, bias=False)
        self.layers = nn.ModuleDict(blocks)

    def forward(self, tokens: torch.Tensor) -> Any:
        """Without its blocks."""
        h = self.tok_embeddings(tokens)
        h = self.norm(h)
        return self.output(h)


def measure_cut(
    shape: RankShape, wrap: Callable[[nn.Module], nn.Module] = lambda made: made
) -> Measured:
    """As measure.measure, of the shape's block on one of RANKS ranks."""

    def run(among: Meshes) -> Measured:
        made, rest, _ = block(shape)
        model = _Model(shape.model.hidden_size, 8, made=made).train()
        cut(model, shape, among)
        size = (shape.micro_batch_size, shape.norm_seq, shape.model.hidden_size)
        leaf = torch.empty(size, requires_grad=True)
        tables = (part for part in rest if part is not None)
        return passes(wrap(made), leaf, rest, {}, (leaf, *_local(model), *tables))

    return _on_a_rank(shape, run)


def measure_ends(shape: RankShape) -> tuple[int, int]:
    """Bytes kept by embedding, head and loss parallel on one of RANKS ranks, and their peak."""

    def run(among: Meshes) -> tuple[int, int]:
        model = _Model(shape.model.hidden_size, shape.model.vocab_size)
        cut(model, shape, among)
        size = shape.micro_batch_size, shape.seq_length
        tokens, labels = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        with LiveBytes((*_local(model), tokens, labels)) as live, loss_parallel():
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
            del logits
            found = live.now - loss.nbytes, live.peak
        return found

    return _on_a_rank(shape, run)


def _local(model: nn.Module) -> list[torch.Tensor]:
    kept = (*model.parameters(), *model.buffers())
    return [part.to_local() if isinstance(part, DTensor) else part for part in kept]


def _on_a_rank(shape: RankShape, run: Callable[[Meshes], Any]) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with fake_ranks(RANKS):
            among = meshes(shape)
            fakes = FakeTensorMode(allow_non_fake_inputs=True)
            with fakes, GpuKernels(), BalancedRouting(shape):
                return run(among)
    finally:
        torch.set_default_dtype(before)


def expert_parallel_step(shape: RankShape, checkpoint: Callable[[nn.Module], None]) -> Any:
    """As fsdp.titan_step, of Qwen3 with experts over ranks of EP: on real tensors, as FSDP looks
    into meshes, and in fp32 shards."""
    with fake_ranks(RANKS):
        among = meshes(shape)
        size = among["ep"].size()
        dense = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
        sparse = init_device_mesh("cpu", (RANKS // size, size), mesh_dim_names=("efsdp", "ep"))
        with GpuKernels(), BalancedRouting(shape):
            model = import_titan("models.qwen3.model.model").Qwen3Model(titan_arguments(shape))
            cut(model, shape, {**among, "ep": sparse["ep"]})
            checkpoint(model)
            import_titan("models.llama4.infra.parallelize").apply_fsdp(
                model,
                dense,
                torch.bfloat16,
                torch.float32,
                pp_enabled=False,
                ep_degree=size,
                edp_mesh=sparse["efsdp"],
            )
            return measured_step(shape, model)
