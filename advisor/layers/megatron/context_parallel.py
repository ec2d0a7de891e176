"""Attention over the ranks of context parallelism, as Transformer Engine runs it.

Derived from its sources, 2.11.0 and 2.20.2, pytorch/attention/dot_product_attention/
context_parallel.py (AttnFuncWithCPAndKVP2P, AttnFuncWithCPAndKVAllGather,
AttnFuncWithCPAndQKVOA2A), and from the releases between where these differ; bytes are held against
these functions on CPU tensors (tests/advisor/layers/megatron/test_context_parallel.py), no GPU has
measured them. Every rank has one chunk from either end of the sequence, so that the causal mask
gives all the same work.
"""

from msgspec import Struct
from msgspec.structs import replace

from advisor.layers.operators import Collective, CollectiveKind, Group, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models.options import CpCommType

_OUTPUT_BY_HEADS = (2, 15)
"""From this release on a2a+p2p keeps its output as it was computed, before heads are given back,
and all_gather the one that it hands on; before, a2a+p2p the one and all_gather its parts."""

_PACKED_GATHER = (2, 18)
"""From this release on all_gather has a zeroed output for packed sequences next to the other."""

_TWO_STEPS = (2, 20)
"""From this release on the forward of the ring holds two of its steps; before, all of them."""


class _Sizes(Struct, frozen=True, kw_only=True):
    """Bytes of one rank's tensors, the same before and after heads are exchanged.

    keys_values: as the forward sends them, in 8 bits under 8-bit attention. statistics: of the
    softmax. kernel: workspace of attention's own backward. ring: ranks that keys and values pass.
    release: Transformer Engine's.
    """

    query: int
    key: int
    value: int
    output: int
    statistics: int
    keys_values: int
    kernel: int
    ring: int
    release: tuple[int, int]

    @property
    def inputs(self) -> int:
        """q, k and v, or their gradients."""
        return self.query + self.key + self.value

    @property
    def pair(self) -> int:
        """k and v, or their gradients."""
        return self.key + self.value

    @property
    def sent_out(self) -> int:
        """q, k and v on their way to other ranks, at most: each is copied to be sent and received,
        and put in order while the next ones travel."""
        return max(2 * self.inputs + max(self.key, self.value), 3 * self.query + 2 * self.key)

    @property
    def given_back(self) -> int:
        """As sent_out, of their gradients, which are all copied before the first is in order."""
        last = 2 * self.inputs + max(self.key, self.value)
        return max(last, self.inputs + 2 * self.query + self.key)

    @property
    def gathered(self) -> int:
        """k and v of all ranks."""
        return self.ring * self.pair

    @property
    def reordered(self) -> int:
        """The larger of k and v of all ranks: the second copy while chunks are put in order."""
        return self.ring * max(self.key, self.value)


class _Run(Struct, frozen=True, kw_only=True):
    """What one kind sends, holds and moves.

    forward_alive: the most bytes of its forward next to its inputs. backward_alive: of its backward
    next to what was kept and the output's gradient. Traffic is beyond that of attention itself.
    """

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]
    forward_alive: int = 0
    backward_alive: int = 0
    forward_traffic: int = 0
    backward_traffic: int = 0


def over_context_ranks(shape: RankShape, alone: Operator) -> Operator:
    """`alone`, attention of one rank that keeps q, k, v, its output and the softmax statistics, as
    it runs over all context-parallel ranks. Megatron's own layers have no such attention: of theirs
    the ring's communication alone is told."""
    sizes = _sizes(shape, alone)
    if shape.is_local:
        run = _ring_traffic(sizes)
        return replace(alone, forward_collectives=run.forward, backward_collectives=run.backward)
    saved = _kept(shape, alone)
    run = _RUNS[_kind(shape)](sizes)
    fresh = {t.name: t.num_bytes for t in (*alone.outputs, *saved) if t not in alone.inputs}
    return replace(
        alone,
        saved=saved,
        forward_collectives=run.forward,
        backward_collectives=run.backward,
        forward_workspace=max(0, run.forward_alive - sum(fresh.values())),
        backward_workspace=max(alone.backward_workspace, run.backward_alive - sizes.inputs),
        second_stream_bytes=_of_second_stream(shape, sizes),
        second_stream=_on_second_stream(shape, alone, saved),
        extra_forward_bytes=run.forward_traffic,
        extra_backward_bytes=run.backward_traffic,
    )


def _of_second_stream(shape: RankShape, sizes: _Sizes) -> int:
    """Bytes that every other step allocates on the stream of context parallelism
    (flash_attn_streams): of the ring's forward what the steps hold together, of all_gather the
    gradients of its second step, which attends to the keys of all ranks, and of the exchange the
    output's gradient."""
    kind = _kind(shape)
    if kind is CpCommType.ALL_GATHER:
        return sizes.gathered + sizes.query // 2
    if kind is CpCommType.A2A:
        return sizes.output
    steps = 1 if sizes.release >= _TWO_STEPS else sizes.ring // 2
    return steps * (sizes.keys_values + sizes.output + sizes.statistics)


def _on_second_stream(
    shape: RankShape, alone: Operator, saved: tuple[Tensor, ...]
) -> frozenset[str]:
    """What is put in order there when it has been exchanged (flash_attn_a2a_communicate): q, k and
    v, which the backward needs, the output with its heads given back, and the gradients of q, k and
    v. What the ring attends to afterwards is a copy (AttnFuncWithCPAndKVP2P)."""
    kind = _kind(shape)
    if kind not in (CpCommType.A2A, CpCommType.A2A_P2P):
        return frozenset()
    gradients = (f"gradient of {tensor.name}" for tensor in alone.inputs)
    exchanged = saved[:3] if kind is CpCommType.A2A else saved[:1]
    written = (tensor.storage.name for tensor in (*exchanged, *alone.outputs))
    return frozenset((*written, *gradients))


def _kind(shape: RankShape) -> CpCommType:
    """a2a+p2p with one rank on either level is the other level alone."""
    if shape.cp_comm_type is not CpCommType.A2A_P2P:
        return shape.cp_comm_type
    if shape.cp_all_to_all_size == 1:
        return CpCommType.P2P
    whole = shape.cp_all_to_all_size == shape.context_parallel_size
    return CpCommType.A2A if whole else CpCommType.A2A_P2P


def ring_steps(shape: RankShape) -> float:
    """Kernels that a row of queries goes through: over a ring its own keys first, then those of
    each other rank, which half of the rows skip in half of the steps (the second chunk alone sees
    them; else both see the first chunk's keys)."""
    if _kind(shape) not in (CpCommType.P2P, CpCommType.A2A_P2P):
        return 1.0
    return 1.0 + 0.75 * (shape.context_parallel_size // shape.cp_all_to_all_size - 1)


def _sizes(shape: RankShape, alone: Operator) -> _Sizes:
    query, key, value = (tensor.num_bytes for tensor in alone.inputs)
    _, sent_key, sent_value, _, statistics = (tensor.num_bytes for tensor in alone.saved)
    return _Sizes(
        query=query,
        key=key,
        value=value,
        output=alone.outputs[0].num_bytes,
        statistics=statistics,
        keys_values=sent_key + sent_value,
        kernel=alone.backward_workspace,
        ring=shape.context_parallel_size // shape.cp_all_to_all_size,
        release=shape.transformer_engine,
    )


def _kept(shape: RankShape, alone: Operator) -> tuple[Tensor, ...]:
    """For the backward: [s, b, heads / ranks, channels] where heads are exchanged; of a ring the
    keys and values that came last."""
    query, key, value, output, statistics = alone.saved
    kind, new = _kind(shape), shape.transformer_engine >= _OUTPUT_BY_HEADS
    if kind is CpCommType.ALL_GATHER:
        if new:
            return alone.saved
        parts = replace(alone.outputs[0], name="core_attn_out_parts")  # 16 bit, whatever the job's
        return (*alone.inputs, parts, statistics)
    if kind is not CpCommType.P2P:
        query, key, value = (_by_heads(shape, tensor) for tensor in (query, key, value))
        if kind is CpCommType.A2A or new:
            output = _by_heads(shape, output)
    if kind is CpCommType.A2A:
        return query, key, value, output, statistics
    elements = key.num_elements + value.num_elements
    return query, Tensor("key_value_received", (elements,), key.dtype), output, statistics


def _by_heads(shape: RankShape, tensor: Tensor) -> Tensor:
    ranks = shape.cp_all_to_all_size
    sequence, batch, heads, channels = tensor.shape
    return Tensor(
        f"{tensor.name}_by_heads", (sequence * ranks, batch, heads // ranks, channels), tensor.dtype
    )


def _send(kind: CollectiveKind, num_bytes: int, *, overlapped: bool = False) -> Collective:
    return Collective(kind, Group.CONTEXT, num_bytes, overlapped)


def _ring_traffic(sizes: _Sizes) -> _Run:
    """Keys and values pass on next to every step but the last; back, their gradients as well."""
    passes, ring = sizes.ring - 1, CollectiveKind.RING
    there = _send(ring, passes * sizes.keys_values, overlapped=True)
    back = _send(ring, passes * sizes.pair, overlapped=True)
    return _Run(forward=(there,), backward=(there, back))


def _ring(sizes: _Sizes) -> _Run:
    """Partial outputs and statistics of every step are merged into the first one's. The last rank's
    steps are whole outputs, the most of all ranks. Back, keys, values and their gradients have a
    buffer to send from and one to receive in, and a step gradients of its own."""
    return replace(
        _ring_traffic(sizes),
        forward_alive=max(_ring_steps(sizes), _ring_end(sizes)),
        backward_alive=4 * sizes.pair + sizes.query + sizes.inputs + sizes.kernel,
        forward_traffic=2 * sizes.keys_values + 3 * (sizes.ring - 1) * sizes.output,
        backward_traffic=2 * sizes.pair + 3 * (sizes.ring - 1) * sizes.inputs,
    )


def _ring_end(sizes: _Sizes) -> int:
    """Bytes after the last step: of all of them, or of the last two, and what they made."""
    new = sizes.release >= _TWO_STEPS
    steps = min(2, sizes.ring) if new else sizes.ring
    parts = sizes.keys_values + sizes.output + sizes.statistics
    return steps * parts + sizes.output + (2 if new else 1) * sizes.statistics


def _ring_steps(sizes: _Sizes) -> int:
    """Bytes in the middle of the ring where it holds two steps: a buffer that comes takes the place
    of one that is still read, and so does a step's output."""
    if sizes.release < _TWO_STEPS:
        return 0
    receives = min(sizes.ring, 4) * sizes.keys_values + 3 * (sizes.output + sizes.statistics)
    buffers, outputs, merged = min(sizes.ring - 1, 3), min(sizes.ring + 1, 4), min(sizes.ring, 5)
    computes = buffers * sizes.keys_values + outputs * sizes.output + merged * sizes.statistics
    return max(receives, computes)


def _gather(sizes: _Sizes) -> _Run:
    """Keys and values of all ranks, in the order of their ranks and then in that of the sequence.

    Either chunk's queries attend to the keys before its end: 2 CP + 1 of 2 CP chunks together, and
    so many gradients, which are added up over the whole sequence. Nothing hides the communication.
    """
    steps = sizes.pair * (2 * sizes.ring + 1) // 2
    forward = _send(CollectiveKind.ALL_GATHER, sizes.gathered)
    backward = forward, _send(CollectiveKind.REDUCE_SCATTER, sizes.gathered)
    outputs = 3 if sizes.release >= _PACKED_GATHER else 2
    attention = sizes.gathered + outputs * sizes.output + sizes.statistics
    gradients = 2 * sizes.gathered + steps + 2 * sizes.query
    return _Run(
        forward=(forward,),
        backward=backward,
        forward_alive=max(sizes.gathered + sizes.reordered, attention),
        backward_alive=gradients + max(sizes.kernel, sizes.reordered),
        forward_traffic=2 * sizes.gathered + 2 * sizes.output,
        backward_traffic=5 * sizes.gathered + 3 * steps + 2 * sizes.query,
    )


def _exchange(sizes: _Sizes) -> _Run:
    """Heads are exchanged for positions before attention and back after it. Nothing but the copies
    hides the communication."""
    there, back = (
        _send(CollectiveKind.ALL_TO_ALL, num_bytes) for num_bytes in (sizes.inputs, sizes.output)
    )
    return _Run(
        forward=(there, back),
        backward=(back, there),
        forward_alive=max(sizes.sent_out, sizes.inputs + sizes.statistics + 4 * sizes.output),
        backward_alive=sizes.output + sizes.inputs + max(sizes.kernel, sizes.given_back),
        forward_traffic=4 * (sizes.inputs + sizes.output),
        backward_traffic=4 * (sizes.inputs + sizes.output),
    )


def _exchange_and_ring(sizes: _Sizes) -> _Run:
    """The ring on exchanged heads; its buffers are there until heads are given back."""
    outer, ring = _exchange(sizes), _ring(sizes)
    exchanged = 1 if sizes.release >= _OUTPUT_BY_HEADS else 2  # output's gradient, and the output
    forward = max(ring.forward_alive, _ring_end(sizes) + 3 * sizes.output)
    given_back = ring.backward_alive - sizes.kernel + sizes.given_back
    return _Run(
        forward=(outer.forward[0], *ring.forward, outer.forward[1]),
        backward=(outer.backward[0], *ring.backward, outer.backward[1]),
        forward_alive=sizes.inputs + forward,
        backward_alive=exchanged * sizes.output + max(ring.backward_alive, given_back),
        forward_traffic=outer.forward_traffic + ring.forward_traffic,
        backward_traffic=outer.backward_traffic + ring.backward_traffic,
    )


_RUNS = {
    CpCommType.P2P: _ring,
    CpCommType.ALL_GATHER: _gather,
    CpCommType.A2A: _exchange,
    CpCommType.A2A_P2P: _exchange_and_ring,
}
