"""Linear layers, embedding and cross entropy cut by tensor parallelism, as Megatron cuts them.
Activations are [micro_batch_size, seq_length, width]. Under sequence parallelism the input of a
column-parallel layer is kept as this rank's shard and gathered again in the backward (megatron-core
0.16.1 tensor_parallel/layers.py, cross_entropy.py)."""

from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import Tensor, nn
from torch.nn import functional


def applied(function: Any, *arguments: Any) -> Tensor:
    """What a function of autograd (a class, which torch does not type) makes of `arguments`."""
    output: Tensor = function.apply(*arguments)
    return output


class TensorParallel(Struct, frozen=True, kw_only=True):
    """The ranks that share every layer; group None where there is one."""

    group: dist.ProcessGroup | None = None
    size: int = 1
    rank: int = 0
    sequence_parallel: bool = False

    def all_reduce(self, tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """Sum over the ranks, or what else `how` says, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, how, group=self.group)
        return tensor

    def gather_sequence(self, shard: Tensor) -> Tensor:
        """[b, s / tp, h] of every rank as [b, s, h]; a copy where b > 1."""
        b, s, h = shard.shape
        out = shard.new_empty(self.size * b, s, h)
        dist.all_gather_into_tensor(out, shard.contiguous(), group=self.group)
        return out.view(self.size, b, s, h).transpose(0, 1).reshape(b, self.size * s, h)

    def scatter_sequence_sum(self, partial: Tensor) -> Tensor:
        """This rank's [b, s / tp, h] of the sum of [b, s, h] over the ranks."""
        b, s, h = partial.shape
        parts = partial.view(b, self.size, s // self.size, h).transpose(0, 1).flatten(0, 1)
        out = partial.new_empty(b, s // self.size, h)
        dist.reduce_scatter_tensor(out, parts.contiguous(), group=self.group)
        return out


class _ColumnParallel(torch.autograd.Function):
    """x W^T on this rank's rows of W; the data gradient is summed while W's is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tp: TensorParallel) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        return functional.linear(tp.gather_sequence(x) if tp.sequence_parallel else x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        tp: TensorParallel = ctx.tp
        grad_x = grads[0] @ weight
        if not tp.sequence_parallel:
            work = dist.all_reduce(grad_x, group=tp.group, async_op=True)
            grad_weight = _weight_gradient(grads[0], x)
            work.wait()
            return grad_x, grad_weight, None
        whole = tp.gather_sequence(x)
        return tp.scatter_sequence_sum(grad_x), _weight_gradient(grads[0], whole), None


class _RowParallel(torch.autograd.Function):
    """x W^T on this rank's columns of W, summed over the ranks; under SP each keeps its shard."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tp: TensorParallel) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tp = tp
        partial = functional.linear(x, weight)
        return tp.scatter_sequence_sum(partial) if tp.sequence_parallel else tp.all_reduce(partial)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = ctx.tp.gather_sequence(grads[0]) if ctx.tp.sequence_parallel else grads[0]
        return grad @ weight, _weight_gradient(grad, x), None


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad.flatten(0, -2).t() @ x.flatten(0, -2)


class Shard(Struct, frozen=True):
    """How a parameter is cut by TP: along `dim`, in each of `blocks` equal parts of it."""

    dim: int
    blocks: int = 1


class ParallelLinear(nn.Module):
    """Weight [out, in] of this rank, cut by rows (`column_parallel`) or by columns. The bias is
    added here where `adds_bias`, and left to what follows where not."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        tp: TensorParallel,
        *,
        column_parallel: bool,
        bias: bool = False,
        adds_bias: bool = False,
        blocks: int = 1,
        **where: Any,
    ) -> None:
        super().__init__()
        cut = (tp.size, 1) if column_parallel else (1, tp.size)
        rows, columns = out_size // cut[0], in_size // cut[1]
        self.tp, self.column_parallel, self.adds_bias = tp, column_parallel, adds_bias
        self.weight = nn.Parameter(torch.empty(rows, columns, **where))
        self.shards = {"weight": Shard(0 if column_parallel else 1, blocks)}
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(rows, **where))
            if column_parallel:
                self.shards["bias"] = Shard(0, blocks)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, in] to [b, s, out] (this rank's part of each)."""
        bias = self.bias if self.adds_bias else None
        if self.tp.size == 1:
            return functional.linear(x, self.weight, bias)
        function = _ColumnParallel if self.column_parallel else _RowParallel
        output = applied(function, x, self.weight, self.tp)
        return output if bias is None else output + bias


class _SumOfRanks(torch.autograd.Function):
    """Sum of partial embeddings over TP; the gradient is handed on, gathered under SP."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        if tp.sequence_parallel:
            return tp.scatter_sequence_sum(partial)
        return tp.all_reduce(partial.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        tp: TensorParallel = ctx.tp
        return tp.gather_sequence(grads[0]) if tp.sequence_parallel else grads[0], None


class VocabParallelEmbedding(nn.Module):
    """Rows [padded vocabulary / tp, hidden] of this rank; foreign tokens give zero."""

    def __init__(self, rows: int, hidden_size: int, tp: TensorParallel, **where: Any) -> None:
        super().__init__()
        self.tp = tp
        self.weight = nn.Parameter(torch.empty(rows // tp.size, hidden_size, **where))
        self.shards = {"weight": Shard(0)}

    def forward(self, tokens: Tensor) -> Tensor:
        """[b, s] token ids to [b, s (/ tp under SP), hidden]."""
        if self.tp.size == 1:
            return functional.embedding(tokens, self.weight)
        local, foreign = _local_ids(tokens, self.weight.shape[0], self.tp)
        partial = functional.embedding(local, self.weight).masked_fill(foreign[..., None], 0.0)
        return applied(_SumOfRanks, partial, self.tp)


def _local_ids(ids: Tensor, rows: int, tp: TensorParallel) -> tuple[Tensor, Tensor]:
    """Row numbers of this rank, 0 for foreign ids, and which are foreign."""
    first = tp.rank * rows
    foreign = (ids < first) | (ids >= first + rows)
    return (ids - first).masked_fill(foreign, 0), foreign


class _CrossEntropy(torch.autograd.Function):
    """Loss of every token in fp32; keeps the softmax in fp32, row numbers and their mask."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, tp: TensorParallel) -> Tensor:
        wide = logits.float() if logits.dtype is not torch.float32 else logits.clone()
        wide -= tp.all_reduce(wide.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        target, foreign = _local_ids(labels.reshape(-1), logits.shape[-1], tp)
        rows = wide.view(-1, wide.shape[-1])
        predicted = rows.gather(1, target[:, None])[:, 0].masked_fill_(foreign, 0.0)
        predicted = tp.all_reduce(predicted).view(labels.shape)
        total = tp.all_reduce(wide.exp_().sum(-1))
        wide /= total[..., None]
        ctx.save_for_backward(wide, target, foreign)
        ctx.dtype = logits.dtype
        return total.log() - predicted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        softmax, target, foreign = ctx.saved_tensors
        rows = softmax.view(-1, softmax.shape[-1])
        rows.scatter_add_(1, target[:, None], (foreign.float() - 1.0)[:, None])
        return softmax.mul_(grads[0][..., None]).to(ctx.dtype), None, None


def cross_entropy(logits: Tensor, labels: Tensor, tp: TensorParallel) -> Tensor:
    """Loss [b, s] of logits [b, s, padded vocabulary / tp] against labels [b, s]."""
    return applied(_CrossEntropy, logits, labels, tp)
