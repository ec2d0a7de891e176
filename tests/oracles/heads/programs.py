"""Code of each implementation of a head: from its wheel, unpacked in a folder, or written after its
source, which each function names. CUDA's own paths are taken: a kernel of Triton writes what it is
given and allocates nothing.

A program takes hidden states [micro_batch_size, seq_length, hidden_size], the output layer's weight
[vocabulary, hidden_size], labels [micro_batch_size, seq_length], and returns what has a gradient.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from advisor.job.loss_head import HeadImplementation, LossHead

Outputs = tuple[Tensor, ...]
Program = Callable[[Tensor, Tensor, Tensor, LossHead, Path], Outputs]


class _Kernel:
    """A kernel of Triton: launched with a grid, allocates nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _module(folder: Path, path: str, *absent: str, device: str = "none") -> Any:
    """The module in `folder`/`path` without its asserts (that tensors are on a GPU), where `absent`
    ones are imported as empty; what holds of a `device` there holds of the CPU."""
    name = path.removesuffix(".py").replace("/", ".")
    parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
    for other in (*parents, *absent):
        sys.modules.setdefault(other, MagicMock(__path__=[]))
    module = ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    text = (folder / path).read_text().replace(f'"{device}"', '"cpu"')
    exec(compile(text, path, "exec", optimize=1), vars(module))
    return module


def _rows(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)


class _FlashCrossEntropy(torch.autograd.Function):
    """flash-attn 2.8 ops/triton/cross_entropy.py: losses and the logarithm of the sum of each row;
    the gradient in a new tensor or over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool) -> Tensor:
        losses, lse = (torch.empty(len(logits), dtype=torch.float32) for _ in range(2))
        ctx.save_for_backward(logits, lse, labels)
        ctx.inplace = inplace
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        logits = ctx.saved_tensors[0]
        return logits if ctx.inplace else torch.empty_like(logits), None, None


def transformers(hidden, weight, labels, head, _) -> Outputs:
    """The installed one's own loss."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = F.linear(hidden, weight)
    return (ForCausalLMLoss(logits, labels, vocab_size=len(weight)),)


def trl(hidden, weight, labels, head, wheel) -> Outputs:
    """add_fused_lm_head: positions with a label are copied out, here all of them."""
    utils = MagicMock(maybe_gather_lm_head_ctx=lambda *args: nullcontext())
    sys.modules["trl.trainer.utils"] = utils
    module = _module(wheel, "trl/kernels/chunked_logprob.py", "trl.trainer")
    module.TOKEN_CHUNK_SIZE = head.chunk_size or 4096
    module._use_triton = lambda device: True
    module._addmm_fp32 = lambda total, left, right: None
    module._forward_kernel = module._backward_kernel = _Kernel()
    module.triton = MagicMock(cdiv=lambda a, b: -(-a // b))
    positions = torch.zeros(labels.numel(), 2, dtype=torch.int64).unbind(1)
    outputs = ("entropy",) if head.entropy else ()
    done = module.ChunkedLogProbFunction.apply(
        hidden[positions],
        weight,
        None,
        labels[positions],
        head.temperature,
        32768,
        None,
        1.0,
        outputs,
    )
    return done[: 2 if head.entropy else 1]


def trl_logits(hidden, weight, labels, head, wheel) -> Outputs:
    """selective_log_softmax's kernel, which divides by the temperature itself."""
    absent = ("triton", "triton.language")
    module = _module(wheel, "trl/kernels/logprob_entropy.py", *absent)
    module._forward_kernel = module._backward_kernel = _Kernel()
    module.triton = MagicMock(cdiv=lambda a, b: -(-a // b))
    logits = F.linear(hidden, weight)
    done = module.selective_log_softmax_and_entropy(logits, labels, head.temperature, None)
    return done if head.entropy else done[:1]


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def liger(hidden, weight, labels, head, wheel) -> Outputs:
    """LigerFusedLinearCrossEntropyFunction, which adds each chunk's gradient in place on a GPU."""
    triton = MagicMock(cdiv=lambda a, b: -(-a // b), next_power_of_2=_power)
    sys.modules["triton"] = triton
    others = ("liger_kernel.functional", "liger_kernel.backends", "liger_kernel.ops.cross_entropy")
    others += ("liger_kernel.ops.utils", "liger_kernel.utils")
    path = "liger_kernel/ops/fused_linear_cross_entropy.py"
    module = _module(wheel, path, *others, device="cuda")
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    module.liger_cross_entropy_kernel = module.element_mul_kernel = _Kernel()
    module.is_hip = lambda: False
    rows, targets = _rows(hidden, labels)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
            total = labels.numel()
            target = MagicMock(wraps=targets)
            target.__ne__ = lambda *_: MagicMock(sum=lambda: MagicMock(item=lambda: total))
            target.__getitem__ = lambda _, key: targets[key]
            loss, *_, rows_grad, weight_grad, _ = module.fused_linear_cross_entropy_forward(
                rows, weight, target
            )
            ctx.save_for_backward(rows_grad, weight_grad)
            return loss

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return ctx.saved_tensors

    return (Function.apply(rows, weight),)


def liger_grpo(hidden, weight, labels, head, wheel) -> Outputs:
    """LigerFusedLinearGRPOFunction without torch.compile of its arithmetic on [tokens]."""
    _module(wheel, "liger_kernel/chunked_loss/fused_linear_ppo.py", "liger_kernel.ops")
    module = _module(wheel, "liger_kernel/chunked_loss/grpo_loss.py")
    sequences = len(labels)
    mask = torch.ones(labels.shape, dtype=torch.float32)
    module.LigerFusedLinearPPOBase.backward = _scaled
    loss, *_ = module.LigerFusedLinearGRPOFunction.apply(
        hidden, weight, labels, mask, torch.ones(sequences), None, None, None, None, None, None,
        0.0, 0.2, 0.2, "grpo", None, "token", 1.0, 1.05, head.temperature, False, False,
    )  # fmt: skip
    return (loss,)


def _scaled(ctx: Any, gradient: Tensor, *_: Any) -> Any:
    """Its own, where the loss is scaled (which gradients over several micro batches are)."""
    made = tuple(None if kept is None else kept * gradient for kept in ctx.saved_tensors)
    return made[0], made[1], None, None, None, *(None,) * 30


def liger_preference(hidden, weight, labels, head, wheel) -> Outputs:
    """LigerFusedLinearDPOFunction on pairs, chosen sequences first, uncompiled."""
    _module(wheel, "liger_kernel/chunked_loss/fused_linear_preference.py")
    module = _module(wheel, "liger_kernel/chunked_loss/dpo_loss.py")
    torch.ne = lambda *_: True
    loss, *_ = module.LigerFusedLinearDPOFunction.apply(
        hidden, weight, labels, None, None, None, None, -100, 0.1, False, False, False
    )
    return (loss,)


def _verl_functions(wheel: Path) -> Any:
    absent = ("tensordict", "verl.utils.device", "flash_attn.ops.triton.cross_entropy", "torch_npu")
    module = _module(wheel, "verl/utils/torch_functional.py", *absent)

    def cross_entropy(logits: Tensor, labels: Tensor, inplace_backward: bool) -> Any:
        return _FlashCrossEntropy.apply(logits, labels, inplace_backward), None

    module.cross_entropy_loss = cross_entropy
    module.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True
    return module


def verl(hidden, weight, labels, head, wheel) -> Outputs:
    """workers/engine/fsdp/transformer_impl.py on packed tokens, entropy compiled."""
    functions = _verl_functions(wheel)
    output = F.linear(hidden.reshape(1, -1, hidden.shape[-1]), weight)
    logits = output.squeeze(0)
    if head.temperature != 1.0:
        logits = logits / torch.full((len(logits), 1), head.temperature, dtype=logits.dtype)
    entropy = (CompiledEntropy.apply(logits),) if head.entropy else ()
    logprobs = functions.logprobs_from_logits(
        logits, labels.reshape(-1), inplace_backward=not head.entropy
    )
    return logprobs, *entropy


def verl_fused(hidden, weight, labels, head, wheel) -> Outputs:
    """FusedLinearForPPO's own functions in torch, with flash-attn's cross entropy."""
    module = _module(wheel, "verl/utils/experimental/torch_functional.py", "liger_kernel.ops")
    module._FLASH_ATTN_CROSS_ENTROPY_AVAILABLE = True
    module.cross_entropy_loss = lambda logits, ids: (_FlashCrossEntropy.apply(logits, ids, False),)
    done = module.FusedLinearForPPO(head.chunk_size or 512)(
        hidden, weight, labels, head.temperature
    )
    return tuple(done[: 2 if head.entropy else 1])


def verl_triton(hidden, weight, labels, head, wheel) -> Outputs:
    """Its host functions, one rank."""
    sys.modules["verl.utils.device"] = MagicMock(get_device_capability=lambda: (9, 0))
    module = _module(wheel, "verl/utils/kernel/kernels.py")
    for name in vars(module):
        if name.startswith("efficient_entropy") and "kernel" in name:
            setattr(module, name, _Kernel())
    module.triton = MagicMock(cdiv=lambda a, b: -(-a // b))

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, weight: Tensor, ids: Tensor) -> Any:
            done = module.efficient_entropy_forward(rows, weight, ids, 0, head.temperature)
            ctx.save_for_backward(rows, weight, ids, *done[2:])
            return done[:2]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            rows, weight, ids, *statistics = ctx.saved_tensors
            given = (*grads, rows, weight, ids, *statistics)
            return *module.efficient_entropy_backward(*given, 0, False, head.temperature), None

    rows, ids = _rows(hidden, labels)
    return tuple(Function.apply(rows, weight, ids))


def _one_rank() -> None:
    """Megatron's group of one, whose collectives do nothing."""
    torch.distributed.all_reduce = lambda *args, **kwargs: None  # type: ignore[assignment]
    from megatron.core import parallel_state

    parallel_state.get_tensor_model_parallel_group = lambda *args, **kwargs: None
    parallel_state.get_tensor_model_parallel_rank = lambda *args: 0
    parallel_state.get_tensor_model_parallel_world_size = lambda *args: 1


def _megatron_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    from megatron.core.tensor_parallel import cross_entropy

    _one_rank()
    cross_entropy.get_tensor_model_parallel_group = lambda: None
    cross_entropy.get_tensor_model_parallel_rank = lambda: 0
    cross_entropy.get_tensor_model_parallel_world_size = lambda: 1
    done: Tensor = cross_entropy.vocab_parallel_cross_entropy(logits, target)
    return done


def verl_megatron(hidden, weight, labels, head, wheel) -> Outputs:
    """_lm_head_logits_processor; the product of softmax and logits is one compiled kernel."""
    path = "verl/utils/megatron/tensor_parallel.py"
    _one_rank()
    module = _module(wheel, path)
    logits = F.linear(hidden, weight)
    logits.div_(torch.ones((*logits.shape[:-1], 1), dtype=logits.dtype))
    if not head.entropy:
        return (-_megatron_cross_entropy(logits, labels),)
    copied = logits.clone()
    compiled, torch.compile = torch.compile, lambda **_: lambda __: _mul_reduce
    entropy = module.vocab_parallel_entropy(logits)
    torch.compile = compiled
    return -_megatron_cross_entropy(copied, labels), entropy


def _mul_reduce(left: Tensor, right: Tensor) -> Tensor:
    return torch.empty((*left.shape[:-1], 1), dtype=left.dtype)


class _Slime(torch.autograd.Function):
    """slime 624b824 slime/utils/ppo_utils.py, written after it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, entropy_has_gradient: bool) -> Any:
        largest = logits.max(dim=-1, keepdim=True)[0]
        softmax = logits - largest
        chosen = softmax.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        softmax.exp_()
        total = softmax.sum(dim=-1, keepdim=True)
        softmax.div_(total)
        product = torch.empty(logits.shape[:-1])  # torch.einsum: a batched product
        entropy = (largest + total.log()).squeeze(-1) - product
        ctx.save_for_backward(softmax, target, *((logits, entropy) if entropy_has_gradient else ()))
        return chosen - total.squeeze(-1).log(), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> Any:
        softmax, target, *rest = ctx.saved_tensors
        of_entropy = None
        if rest:
            logits, entropy = rest
            of_entropy = logits - entropy.unsqueeze(-1)
            of_entropy.mul_(softmax).mul_(grad_entropy.neg().unsqueeze(-1))
        softmax.neg_()
        softmax.scatter_add_(-1, target.unsqueeze(-1), torch.ones(target.shape).unsqueeze(-1))
        softmax.mul_(grad.unsqueeze(-1))
        if of_entropy is not None:
            softmax.add_(of_entropy)
        return softmax, None, None


def slime(hidden, weight, labels, head, _) -> Outputs:
    """Float16Module's fp32 logits, divided into a copy, in chunks of tokens."""
    output = F.linear(hidden, weight).float()
    logits = output if head.temperature == 1.0 else output / head.temperature
    rows, ids = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    parts = [(rows, ids)]
    if head.chunk_size is not None:
        parts = list(zip(rows.split(head.chunk_size), ids.split(head.chunk_size), strict=True))
    done = [_Slime.apply(part, chosen, head.entropy) for part, chosen in parts]
    logprobs = torch.cat([one for one, _ in done])
    return (logprobs, torch.cat([one for _, one in done])) if head.entropy else (logprobs,)


def _distributed_log_softmax(logits: Tensor) -> Tensor:
    shifted = logits - torch.amax(logits, dim=-1, keepdim=True)
    total = shifted.exp().sum(-1, keepdim=True).float()
    return shifted - total.log_().to(shifted.dtype)


class _NemoLogprob(torch.autograd.Function):
    """NeMo-RL 7ea279a nemo_rl/distributed/model_utils.py DistributedLogprob, written after it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        mask = (target < 0) | (target >= logits.shape[-1])
        masked = target - 0
        masked[mask] = 0
        log_probs = _distributed_log_softmax(logits.to(torch.float32))
        softmax = log_probs.exp()
        log_probs = log_probs.gather(-1, masked.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(softmax, mask, masked)
        return log_probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        softmax, _, masked = ctx.saved_tensors
        gradient = softmax.neg()
        gradient.mul_(grads[0].unsqueeze(-1))
        gradient.scatter_add_(-1, masked.unsqueeze(-1), grads[0].unsqueeze(-1))
        return gradient, None


class _NemoChunked(torch.autograd.Function):
    """ChunkedDistributedLogprob of the same file."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, size: int) -> Tensor:
        mask = (target < 0) | (target >= logits.shape[-1])
        masked = target - 0
        masked[mask] = 0
        every = []
        for start in range(0, logits.shape[1], size):
            part = slice(start, start + size)
            chunk = logits[:, part].to(torch.float32)
            log_probs = _distributed_log_softmax(chunk)
            every.append(log_probs.gather(-1, masked[:, part].unsqueeze(-1)).squeeze(-1))
        ctx.save_for_backward(logits, mask, masked)
        ctx.size = size
        return torch.cat(every, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        logits, mask, _ = ctx.saved_tensors
        gradient = torch.zeros_like(logits)
        for start in range(0, logits.shape[1], ctx.size):
            part = slice(start, start + ctx.size)
            chunk = logits[:, part].to(torch.float32)
            softmax = _distributed_log_softmax(chunk).exp()
            chosen = (~mask[:, part]).unsqueeze(-1) * torch.zeros(chunk.shape, dtype=torch.int64)
            made = chosen.float()
            made.sub_(softmax).mul_(grads[0][:, part].unsqueeze(-1))
            gradient[:, part] = made
        return gradient, None, None


def nemo_rl(hidden, weight, labels, head, _) -> Outputs:
    """Whole, from fp32 logits; or in chunks (logprob_chunk_size), from logits as they are."""
    logits = F.linear(hidden, weight)
    if head.chunk_size is None:
        return (_NemoLogprob.apply(logits.to(torch.float32), labels),)
    return (_NemoChunked.apply(logits, labels, head.chunk_size),)


class _PrimeRL(torch.autograd.Function):
    """prime-rl 559b447 src/prime_rl/trainer/models/layers/lm_head.py, written after it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, inv_t: Tensor, size: int
    ) -> Any:
        vocabulary = len(weight)
        logprobs, entropy, every_logz = (torch.empty(len(hidden)) for _ in range(3))
        for tokens in range(0, len(hidden), size):
            rows = slice(tokens, tokens + size)
            states, scale = hidden[rows], inv_t[rows].unsqueeze(-1)
            largest = torch.full((len(states),), float("-inf"))
            total, weighted, chosen = (torch.zeros(len(states)) for _ in range(3))
            for start in range(0, vocabulary, 8192):
                part = weight[start : start + 8192]
                logits = states @ part.t()
                scaled = logits.to(torch.float32) * scale
                largest, total, weighted = _online(largest, total, weighted, scaled)
            logz = largest + total.log()
            logprobs[rows], entropy[rows] = chosen - logz, logz - weighted / total
            every_logz[rows] = logz
        ctx.save_for_backward(hidden, weight, labels, inv_t, every_logz)
        ctx.size = size
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        hidden, weight, _, inv_t, logz = ctx.saved_tensors
        made, of_weight = torch.zeros_like(hidden), None
        if weight.requires_grad:
            of_weight = torch.zeros_like(weight)
        for tokens in range(0, len(hidden), ctx.size):
            rows = slice(tokens, tokens + ctx.size)
            states, scale = hidden[rows], inv_t[rows].unsqueeze(-1)
            for start in range(0, len(weight), 8192):
                part = weight[start : start + 8192]
                logits = states @ part.t()
                scaled = logits.to(torch.float32) * scale
                probs = torch.exp(scaled - logz[rows].unsqueeze(-1))
                gradient = (-grad[rows]).unsqueeze(-1) * probs
                gradient = gradient * scale
                made[rows].add_(gradient.to(hidden.dtype) @ part)
                if of_weight is not None:
                    of_part = gradient.to(weight.dtype).t() @ states
                    of_weight[start : start + 8192].add_(of_part)
        return made, of_weight, None, None, None


def _online(largest: Tensor, total: Tensor, weighted: Tensor, chunk: Tensor) -> tuple[Tensor, ...]:
    new = torch.maximum(largest, chunk.amax(dim=-1))
    scale, exp = torch.exp(largest - new), torch.exp(chunk - new.unsqueeze(-1))
    return new, total * scale + exp.sum(-1), weighted * scale + (exp * chunk).sum(-1)


def prime_rl(hidden, weight, labels, head, _) -> Outputs:
    """FusedOutputLinear; its entropy has no gradient."""
    rows, ids = _rows(hidden, labels)
    inv_t = torch.ones(len(rows))
    return _PrimeRL.apply(rows, weight, ids, inv_t, head.chunk_size or 8192)[:1]


class _Gather(torch.autograd.Function):
    """torch's own, whose backward adds in place except under a dispatch mode, as a meter is one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = logits.shape
        return logits.gather(-1, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.zeros(ctx.size).scatter_add_(-1, ctx.saved_tensors[0], grads[0]), None


def _selected(logits: Tensor, labels: Tensor) -> Tensor:
    """selective_log_softmax of fp32 logits, sequence by sequence."""
    chosen = _Gather.apply(logits, labels.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.stack([torch.logsumexp(one, dim=-1) for one in logits])


def prime_rl_logits(hidden, weight, labels, head, _) -> Outputs:
    """The head that is not fused, and the trainer's log-probabilities of it."""
    logits = F.linear(hidden, weight).float().contiguous()
    logits = logits / torch.full((*labels.shape, 1), head.temperature)
    return (_selected(logits, labels),)


def openrlhf(hidden, weight, labels, head, wheel) -> Outputs:
    """Actor.forward; flash-attn is there, and the entropy is compiled."""
    made = MagicMock(
        cross_entropy_loss=lambda logits, ids: (_FlashCrossEntropy.apply(logits, ids, False),)
    )
    sys.modules["flash_attn.ops.triton.cross_entropy"] = made
    compiled, torch.compile = torch.compile, lambda function: function  # type: ignore[assignment]
    module = _module(wheel, "openrlhf/models/utils.py", "deepspeed", "flash_attn.ops.triton")
    torch.compile = compiled
    logits = F.linear(hidden, weight).to(torch.float32)
    if head.temperature != 1.0:
        logits.div_(head.temperature)
    entropy = (CompiledEntropy.apply(logits),) if head.entropy else ()
    return module.log_probs_from_logits(logits, labels), *entropy


class CompiledEntropy(torch.autograd.Function):
    """entropy_from_logits as torch.compile splits it: of each row two statistics in fp32, and one
    in the type of the logits (test_compiled_entropy)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        rows = (*logits.shape[:-1], 1)
        kept = (torch.empty(rows), torch.empty(rows), torch.empty(rows, dtype=logits.dtype))
        ctx.save_for_backward(logits, *kept)
        return torch.empty(rows[:-1], dtype=logits.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


def automodel_chunked(hidden, weight, labels, head, wheel) -> Outputs:
    """ChunkedCrossEntropy, not compiled."""
    base = type("LinearCrossEntropy", (torch.nn.Module,), {})
    sys.modules["nemo_automodel.components.loss.linear_ce_base"] = MagicMock(
        LinearCrossEntropy=base
    )
    module = _module(wheel, "nemo_automodel/components/loss/chunked_ce.py")
    rows, ids = _rows(hidden, labels)
    size = head.chunk_size or 512
    function = module._linear_cross_entropy
    return (module._ChunkedLinearCE.apply(rows, weight, ids, size, -100, None, function),)


def torchtitan_chunked(hidden, weight, labels, head, wheel) -> Outputs:
    """ChunkedLossWrapper around its cross entropy."""
    absent = ("spmd_types", "torchtitan.config", "torchtitan.distributed.spmd_types")
    absent += ("torchtitan.distributed.utils", "torchtitan.tools.logging")
    sys.modules["torchtitan.config"] = MagicMock(Configurable=_Configurable)
    spmd = MagicMock(local=nullcontext, no_typecheck=nullcontext)
    spmd.register_autograd_function = lambda cls: cls
    sys.modules["spmd_types"] = spmd
    module = _module(wheel, "torchtitan/components/loss.py", *absent)
    module.get_spmd_backend = lambda: "none"
    wrapper = object.__new__(module.ChunkedLossWrapper)
    wrapper.num_chunks = labels.numel() // head.chunk_size if head.chunk_size else 8
    wrapper.loss_fn = lambda logits, ids, *_: (module.cross_entropy_loss(logits, ids), {})
    wrapper.lm_head = lambda states: F.linear(states, weight)
    return (wrapper(hidden, labels)[0],)


class _Configurable:
    class Config:
        """Empty."""


PROGRAMS: Final[dict[HeadImplementation, Program]] = {
    HeadImplementation(program.__name__): program
    for program in (
        *(transformers, trl, trl_logits, liger, liger_grpo, liger_preference, verl, verl_fused),
        *(verl_triton, verl_megatron, slime, nemo_rl, prime_rl, prime_rl_logits, openrlhf),
        *(automodel_chunked, torchtitan_chunked),
    )
}
"""By the name of the implementation."""
