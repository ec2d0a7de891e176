"""Seconds of NCCL's collectives by size and group, and what many ranks cost: a step waits for the
slowest of them."""

from math import log, pi, sqrt

from msgspec import Struct

from advisor.layers.operators import CollectiveKind


class Link(Struct, frozen=True, kw_only=True):
    """What joins the ranks of one group, as reached; bytes per second of one GPU, one direction.

    latency_seconds: fixed cost of one collective. ring_seconds, tree_seconds: what the first byte
    takes once round a ring of the group, and up and down a tree of its ranks. ramp: how the chunks
    that fill the ring add to it, see `collective_seconds`. reducing_bytes_per_second: of an
    all-reduce's tensor where the switches add (NVLink SHARP), 0 where they cannot. busy: its rate
    over that within a node: so much of a collective's time its kernels move bytes at full speed.
    """

    bytes_per_second: float
    latency_seconds: float
    ring_seconds: float = 0.0
    tree_seconds: float = 0.0
    ramp: float = 0.0
    reducing_bytes_per_second: float = 0.0
    busy: float = 1.0


def collective_seconds(kind: CollectiveKind, num_bytes: float, ranks: int, joined: Link) -> float:
    """Seconds of a collective over `ranks` ranks; `num_bytes` is the full tensor's size.

    A ring of n ranks passes (n - 1) / n of the bytes on for an all-gather or a reduce-scatter, and
    an all-reduce is both (bus bandwidth of nccl-tests, doc/PERFORMANCE.md). NCCL takes the fastest
    of what it has: for an all-reduce also a tree, whose first byte is there sooner at half the
    rate, and the switches themselves. Left out: trees of NVLink SHARP over nodes (NVLSTree), PAT.
    """
    if ranks == 1:
        return 0.0
    passed = num_bytes * (ranks - 1) / ranks / joined.bytes_per_second
    match kind:
        case CollectiveKind.RING:
            whole = num_bytes / joined.bytes_per_second
            return whole + (ranks - 1) * joined.latency_seconds
        case CollectiveKind.ALL_TO_ALL:
            return passed + joined.latency_seconds
        case CollectiveKind.ALL_REDUCE:
            return _all_reduce_seconds(num_bytes, passed, joined)
    return _filled(joined.latency_seconds + joined.ring_seconds, passed, joined.ramp)


def _all_reduce_seconds(num_bytes: float, passed: float, joined: Link) -> float:
    ring = _filled(joined.latency_seconds + 2 * joined.ring_seconds, 2 * passed, joined.ramp)
    tree = _filled(joined.latency_seconds + joined.tree_seconds, 4 * passed, joined.ramp)
    if not joined.reducing_bytes_per_second:
        return min(ring, tree)
    whole = num_bytes / joined.reducing_bytes_per_second
    switches = _filled(joined.latency_seconds + joined.tree_seconds, whole, joined.ramp)
    return min(ring, tree, switches)


def _filled(first: float, passing: float, ramp: float) -> float:
    """Time of chunks that follow each other: until the `first` byte is through, all bytes at the
    link's rate, and the chunks that fill and empty the way. Those would be 2 sqrt(first x passing)
    if every chunk paid for itself like a first one, and are sqrt(ramp x first x passing)."""
    return first + passing + sqrt(ramp * first * passing)


def pipeline_transfer_seconds(
    hidden_bytes: int, vpp: int, joined: Link, hidden_fraction: float
) -> float:
    """Exposed point-to-point time of one microbatch on one stage: through every chunk an activation
    forward and its gradient back. 1F1B waits for them; the interleaved schedule runs them next to
    the kernels, which hides `hidden_fraction` as of any other communication."""
    each = 2 * (hidden_bytes / joined.bytes_per_second + joined.latency_seconds)
    return each if vpp == 1 else vpp * each * (1 - hidden_fraction)


_EULER = 0.5772156649015329


def waiting_share(ranks: int, spread: float) -> float:
    """How much longer than the average rank the slowest of `ranks` works, where their speeds vary
    by the relative standard deviation `spread`: the mean of the largest of n normal values.

    Source: Gumbel's limit of extremes (Cramer 1946, 28.6), within 0.1 deviations from 8 values on.
    """
    if ranks == 1:
        return 0.0
    root = sqrt(2 * log(ranks))
    largest = root - (log(log(ranks)) + log(4 * pi)) / (2 * root) + _EULER / root
    return spread * largest
