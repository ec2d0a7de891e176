"""What memory and time see of samples of several lengths: the worst microbatch and the mean one."""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, lcm, sqrt
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.job.job import Job, sequence_shards
from advisor.job.layout import SHARDED_GRADIENTS
from advisor.job.lengths import Lengths, expected_most, read_lengths
from advisor.job.samples import Packing

_EVEN_ODDS: Final = 0.5
_ROUNDING: Final = 1e-9
_LEVELS: Final = range(1, 9)
"""Of a bin's parts: of how many of them samples are counted that are longer (a judgement)."""


class Microbatches(Struct, frozen=True, kw_only=True):
    """Microbatches of a job.

    Attributes:
        worst: the job whose microbatches all have the most tokens that one may have: it decides
            memory. The job itself where all samples are of seq_length.
        mean: the job with as many microbatches as the slowest rank has in a step, all with as many
            tokens as it has in the mean: it decides time.
        lengths: of the samples, cut at seq_length.
        samples: that each rank has in a step.
        tokens: of a step on all ranks, without padding; padded_tokens: with it.
        capacity: tokens that a row of several samples has room for; 0 where it holds one.
        multiple: what the tokens of a row are a multiple of.
    """

    worst: Job
    mean: Job
    lengths: Lengths
    samples: float
    tokens: float
    padded_tokens: float
    capacity: int = 0
    multiple: int = 1

    @property
    def samples_of_step(self) -> float:
        """Of all ranks."""
        return self.samples * self.worst.layout.data_parallel_size

    def longest_until(self, step: int) -> int:
        """Tokens of the longest row of all ranks until a step, with even odds that none is longer:
        the longest sample, with what others of its rank add up to the capacity."""
        longest = self.lengths.quantile(_EVEN_ODDS ** (1 / (step * self.samples_of_step)))
        filled = min(self.capacity, longest + round((self.samples - 1) * self.lengths.mean))
        return min(self.worst.config.seq_length, _up(max(longest, filled), self.multiple))

    def share_of_steps_above(self, row: int) -> float:
        """How likely a step has a longer row than this one: a longer sample, or a full pack."""
        full = self.capacity > row and self.longest_until(1) > row
        return 1.0 if full else float(1 - self.lengths.not_above(row) ** self.samples_of_step)


@lru_cache(maxsize=4096)
def microbatches(job: Job) -> Microbatches:
    """What becomes of its samples: see Microbatches. UserError where `samples.lengths` cannot be
    read."""
    config, said, whole = job.config, job.config.samples, job.config.seq_length
    lengths, (each, _) = Lengths((whole,), (1.0,)), sequence_shards(job.layout)
    if said.lengths:
        lengths = read_lengths(said.lengths).changed(lambda length: min(length, whole))
    sequences = config.global_batch_size * config.rl.sequences
    tokens = sequences * (whole if said.fills_rows else lengths.mean)
    found = Microbatches(
        worst=job,
        mean=job,
        lengths=lengths,
        samples=sequences / job.layout.data_parallel_size,
        tokens=tokens,
        padded_tokens=tokens,
        multiple=lcm(each, said.pad_to_multiple_of),
    )
    if not said.varies:
        return found
    if said.fills_rows:
        row = _with_rows(found, whole)
        return replace(found, worst=row, mean=row, capacity=whole)
    if said.packed:
        return _of_packs(found, lengths.changed(lambda length: _up(length, each)))
    return _of_padded(found, lengths.changed(lambda length: _up(length, found.multiple)))


def _with_rows(found: Microbatches, tokens: float, count: int | None = None) -> Job:
    """The job with rows of so many tokens, or the next multiple; `count` of them a rank and step,
    where that is not the number of samples."""
    job, config = found.worst, found.worst.config
    said, row = config.samples, _up(ceil(tokens - _ROUNDING), found.multiple)
    attended = config.mean_packed_length
    if said.packed and attended is None:  # the sum of squares over the sum
        attended = round(found.lengths.sum_of(lambda length: length**2) / found.lengths.mean)
    own = replace(
        config,
        seq_length=row,
        mean_packed_length=attended and min(attended, row),
        samples=replace(
            said,
            lengths="",
            token_budget=None,
            packing=Packing.PACKED if said.packed else Packing.PADDED,
        ),
    )
    if count is not None:
        batch = count * job.layout.data_parallel_size
        own = replace(own, micro_batch_size=1, global_batch_size=batch)
    return replace(job, config=own)


def _of_padded(found: Microbatches, lengths: Lengths) -> Microbatches:
    """Each microbatch as long as its longest sample. Where ranks wait for each other in every
    microbatch, it is the longest of all; else the rank with the longest ones is waited for, whose
    sum is normal."""
    job, config, ranks = found.worst, found.worst.config, found.worst.layout.data_parallel_size
    size = config.micro_batch_size * config.rl.sequences
    rows = lengths.longest_of(size)
    if job.layout.data_parallel_sharding in SHARDED_GRADIENTS or config.sync_each_batch:
        mean = lengths.longest_of(size * ranks).mean
    else:
        mean = rows.mean + expected_most(ranks) * rows.deviation / sqrt(job.num_microbatches)
    return replace(
        found,
        worst=_with_rows(found, lengths.longest),
        mean=_with_rows(found, min(mean, lengths.longest)),
        padded_tokens=found.samples_of_step * rows.mean,
    )


def _of_packs(found: Microbatches, lengths: Lengths) -> Microbatches:
    """Packs of up to a budget; each rank has as many as the one that needs most."""
    said, layout = found.worst.config.samples, found.worst.layout
    budget = (said.token_budget or 0) * layout.context_parallel_size
    capacity = round(budget * lengths.mean / found.lengths.mean)
    if said.lengths and len(lengths.values) == 1:
        capacity -= capacity % lengths.longest  # whole samples
    most = 0.0 if said.balanced else expected_most(layout.data_parallel_size)
    most = lengths.mean + most * lengths.deviation / sqrt(found.samples)
    most = min(most, lengths.longest) * found.samples
    packs = _packs_of_sample(lengths, capacity) * most / lengths.mean if capacity else found.samples
    count = max(1, ceil(packs - _ROUNDING))
    if layout.virtual_pipeline_model_parallel_size > 1:
        count = _up(count, layout.pipeline_model_parallel_size)
    worst = max(lengths.longest, min(capacity, found.samples * lengths.longest))
    return replace(
        found,
        worst=_with_rows(found, worst, count),
        mean=_with_rows(found, min(worst, most / count), count),
        padded_tokens=found.samples_of_step * lengths.mean,
        capacity=capacity,
    )


def _packs_of_sample(lengths: Lengths, capacity: int) -> float:
    """Packs over samples, at least: by tokens, and by samples of which only k are shorter than a
    pack (dual feasible functions, Fekete and Schepers 2001). What is longer has a pack alone."""

    def by(weight: Callable[[int], float]) -> float:
        return lengths.sum_of(lambda length: weight(length) if length <= capacity else 1.0)

    def parts(level: int) -> float:
        return by(lambda length: (-(-(level + 1) * length // capacity) - 1) / level)

    return max(by(lambda length: length / capacity), *map(parts, _LEVELS))


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
