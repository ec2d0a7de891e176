"""What the options of DeepSpeed's activation_checkpointing keep, against its own functions.

The CPU stands for the device. An accelerator whose tensors are the host's would have nothing to
move: `_Device` calls itself another one, without streams, as DeepSpeed's engine allows.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

deepspeed = pytest.importorskip("deepspeed")
pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is

import torch  # noqa: E402
from deepspeed import accelerator as accelerators  # noqa: E402
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: E402
from deepspeed.runtime.activation_checkpointing import checkpointing  # noqa: E402
from torch import nn  # noqa: E402

from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import Modifier, TorchSetting, parse_setting  # noqa: E402
from advisor.memory.chunk import ChunkFootprint, chunk_footprint  # noqa: E402
from advisor.models.layer_kind import DENSE  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402
from advisor.plan.recompute_plan import Checkpoint, InputStorage  # noqa: E402

from .stacks.fsdp import fake_ranks  # noqa: E402
from .stacks.measure import Measured, measure  # noqa: E402
from .stacks.shapes import LLAMA3_8B, shape_of  # noqa: E402

BLOCKS = 3
TOY = replace(
    LLAMA3_8B,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=16,
)
SHAPE = shape_of(TOY, TransformerImpl.TORCH, seq=128)
HIDDEN = 2 * 128 * 64 * 2
SMALL = BLOCKS * 64
"""Of each block an emptied input (2 bytes), the shapes of its two arguments (40, on the host) and
the index of a contiguous buffer's pages (24) are kept, which are not ours to count."""
WITHOUT_STREAMS = Semantics(
    use_reentrant=True,
    hooked=Checkpoint.NON_REENTRANT,
    newest_stay=1,
    offload=InputStorage(offloaded=True, overlapped=True, more=1),
)
"""On a GPU one input more waits, for the stream that copies it."""


class _Device(CPU_Accelerator):
    def is_synchronized_device(self) -> bool:
        return False

    def create_op_builder(self, class_name: str) -> None:
        """None: a kernel for shared memory would be compiled for a group that we do not use."""


class _Group:
    """A model-parallel group of `size`, of which this process is the first rank."""

    def __init__(self, size: int) -> None:
        self.get_model_parallel_rank = lambda: 0
        self.get_model_parallel_world_size = lambda: size
        self.get_model_parallel_group = lambda: None


class _Row(nn.Module):
    def __init__(self, blocks: list[nn.Module], rest: tuple[Any, ...], reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self._rest, reentrant_function = rest, checkpointing.checkpoint
        self._call = reentrant_function if reentrant else checkpointing.non_reentrant_checkpoint

    def forward(self, hidden: torch.Tensor, *_: Any) -> Any:
        for block in self.blocks:
            hidden = self._call(block, hidden, *self._rest)
        return hidden


@pytest.fixture(scope="module", autouse=True)
def _ranks() -> Iterator[None]:
    before = accelerators.get_accelerator()
    accelerators.set_accelerator(_Device())
    with fake_ranks():
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, dist_init_required=False)
        yield
    accelerators.set_accelerator(before)


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    checkpointing.reset()
    checkpointing.configure(_Group(1))


def _configure(setting: TorchSetting, ranks: int = 1) -> None:
    chosen = setting.options
    checkpointing.configure(
        _Group(ranks),
        partition_activations=Modifier.PARTITION_ACTIVATIONS in chosen,
        contiguous_checkpointing=Modifier.CONTIGUOUS_MEMORY_OPTIMIZATION in chosen,
        checkpoint_in_cpu=Modifier.CPU_CHECKPOINTING in chosen,
        num_checkpoints=BLOCKS,
    )


def _both(spec: str) -> tuple[Measured, ChunkFootprint]:
    """What is measured, and what is predicted."""
    setting = parse_setting(spec)
    _configure(setting)
    reentrant = setting.use_reentrant is not False
    measured = measure(
        SHAPE, lambda blocks, rest: _Row(blocks, rest, reentrant), num_blocks=BLOCKS, real=True
    )
    plan = chunk_plan(setting, SHAPE, (DENSE,) * BLOCKS, WITHOUT_STREAMS)
    return measured, chunk_footprint(SHAPE, plan, False, False)


@pytest.mark.parametrize(
    "spec",
    [
        "full",
        "full+no_reentrant",
        "full+partition_activations",
        "full+partition_activations+contiguous_memory_optimization",
    ],
)
def test_on_the_device(spec: str) -> None:
    """One rank: parts are whole inputs, and cost a copy while the block runs forward. The backward
    of several blocks holds all their weight gradients here, and not there."""
    measured, predicted = _both(spec)
    small = SMALL if parse_setting(spec).options else 0
    assert predicted.kept == BLOCKS * HIDDEN
    assert measured.kept == pytest.approx(predicted.kept, abs=small)
    assert measured.forward == pytest.approx(predicted.forward.num_bytes, abs=small)


@pytest.mark.parametrize("kind", ["", "+no_reentrant"])
def test_inputs_on_the_host(kind: str) -> None:
    measured, predicted = _both(f"full{kind}+cpu_checkpointing")
    away = checkpointing._get_cpu_offload_engine().stats.offloaded_bytes
    assert away == (BLOCKS - 1) * HIDDEN
    assert predicted.kept == HIDDEN
    assert measured.kept - away == pytest.approx(predicted.kept, abs=SMALL)
    # the last block runs while the newest input waits and those before it are away
    forward = measured.forward - (BLOCKS - 2) * HIDDEN
    assert forward == pytest.approx(predicted.forward.num_bytes, abs=SMALL)


def test_parts_on_the_host() -> None:
    """Blocking copies: the part is away before the block runs."""
    measured, predicted = _both("full+partition_activations+cpu_checkpointing")
    away = BLOCKS * HIDDEN
    assert predicted.kept == 0
    assert measured.kept == pytest.approx(away, abs=SMALL)
    assert measured.forward - away == pytest.approx(predicted.forward.num_bytes, abs=SMALL)


def test_parts_of_a_model_parallel_group() -> None:
    setting = parse_setting("full+partition_activations")
    _configure(setting, ranks=2)
    leaf = torch.empty(2, 128, 64, dtype=torch.bfloat16, requires_grad=True)
    hidden = leaf * 1
    output = checkpointing.checkpoint(lambda x: x * 2, hidden)
    (kept, _size) = output.grad_fn.deepspeed_saved_tensors
    assert kept.saved_data.nbytes == HIDDEN // 2
    cut = replace(SHAPE, tensor_model_parallel_size=2)
    plan = chunk_plan(setting, cut, (DENSE,), WITHOUT_STREAMS)
    assert chunk_footprint(cut, plan, False, False).kept == HIDDEN // 2


def test_contiguous_needs_parts() -> None:
    with pytest.raises(AssertionError, match="only available with partitioned activations"):
        _configure(parse_setting("full+contiguous_memory_optimization"))
