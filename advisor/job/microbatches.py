"""What memory and time see of samples of several lengths: the worst microbatch and the mean one."""

from functools import lru_cache
from math import ceil, lcm, sqrt
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from advisor.job.job import Job, sequence_shards
from advisor.job.layout import SHARDED_GRADIENTS
from advisor.job.lengths import Lengths, expected_most, read_lengths
from advisor.job.samples import Packing

_EVEN_ODDS: Final = 0.5
_ROUNDING: Final = 1e-9


class Microbatches(Struct, frozen=True, kw_only=True):
    """Microbatches of a job.

    Attributes:
        worst: the job whose microbatches all have the most tokens that one may have: it decides
            memory. The job itself where all samples are of seq_length.
        mean: the job with as many microbatches as the slowest rank has in a step, all with as many
            tokens as it has in the mean: it decides time.
        tokens: of a step on all ranks, without padding; padded_tokens: with it.
        lengths: of the samples, cut at seq_length.
        samples: that each rank has in a step.
        capacity: tokens of a pack of several samples; None where rows hold one sample, or are all
            of seq_length.
        multiple: what the tokens of a row are a multiple of.
    """

    worst: Job
    mean: Job
    tokens: float
    padded_tokens: float
    lengths: Lengths
    samples: float
    capacity: int | None = None
    multiple: int = 1

    @property
    def varies(self) -> bool:
        """Whether a step may have a longer microbatch than another one."""
        return self.longest_until(1) < self.worst.config.seq_length

    def longest_until(self, step: int) -> int:
        """Tokens of the longest row of all ranks until a step, with even odds that none is longer:
        the longest sample, with what others of its rank add up to the capacity."""
        draws = step * self.samples * self.worst.layout.data_parallel_size
        longest = self.lengths.quantile(_EVEN_ODDS ** (1 / draws))
        others = round((self.samples - 1) * self.lengths.mean)
        row = max(longest, min(self.capacity or 0, longest + others))
        return min(self.worst.config.seq_length, _up(row, self.multiple))

    def share_of_steps_above(self, row: int) -> float:
        """How likely a step has a sample that needs a longer row than this one."""
        samples = self.samples * self.worst.layout.data_parallel_size
        return float(1 - self.lengths.not_above(row) ** samples)


def microbatches(job: Job) -> Microbatches:
    """What becomes of its samples: see Microbatches. UserError where `samples.lengths` cannot be
    read."""
    if job.config.samples.varies:
        return _of_samples(job)
    tokens = job.config.global_batch_size * job.config.seq_length
    lengths = Lengths((job.config.seq_length,), (1.0,))
    samples = job.config.global_batch_size / job.layout.data_parallel_size
    return Microbatches(
        worst=job,
        mean=job,
        tokens=tokens,
        padded_tokens=tokens,
        lengths=lengths,
        samples=samples,
    )


@lru_cache(maxsize=256)
def _of_samples(job: Job) -> Microbatches:
    config, said, ranks = job.config, job.config.samples, job.layout.data_parallel_size
    longest = config.seq_length
    lengths = Lengths((longest,), (1.0,))
    if said.lengths:
        lengths = read_lengths(said.lengths).cut(longest)
    attended = config.mean_packed_length or round(lengths.mean_square / lengths.mean)
    each, _ = sequence_shards(job.layout)
    padded = lengths.padded(each)
    rows = _Rows(
        job=job,
        packing=Packing.PACKED if said.packed else Packing.PADDED,
        attended=attended if said.packed else None,
        multiple=lcm(each, said.pad_to_multiple_of),
    )
    found: dict[str, Any] = {
        "lengths": lengths,
        "samples": config.global_batch_size / ranks,
        "tokens": config.global_batch_size * lengths.mean,
        "padded_tokens": config.global_batch_size * padded.mean,
        "multiple": rows.multiple,
    }
    if said.token_budget is not None:
        capacity = round(
            said.token_budget * job.layout.context_parallel_size * padded.mean / lengths.mean
        )
        return _of_packs(rows, padded, capacity, found)
    if said.packed:
        full = rows.made(config.seq_length)
        tokens = config.global_batch_size * config.seq_length
        own = {"worst": full, "mean": full, "tokens": tokens, "padded_tokens": tokens}
        return Microbatches(**found | own)
    return _of_padded(rows, lengths.padded(rows.multiple), found)


class _Rows(Struct, frozen=True, kw_only=True):
    """How rows of a job's samples are made into a job of equal rows."""

    job: Job
    packing: Packing
    attended: int | None
    multiple: int

    def made(self, length: float, count: int | None = None) -> Job:
        """The job with rows of so many tokens, or the next multiple; `count` is that of a rank in a
        step, where it is not the number of samples."""
        config, row = self.job.config, _up(ceil(length - _ROUNDING), self.multiple)
        plain = replace(config.samples, lengths="", token_budget=None, packing=self.packing)
        size, batch = config.micro_batch_size, config.global_batch_size
        if count is not None:
            size, batch = 1, count * self.job.layout.data_parallel_size
        own = replace(
            config,
            seq_length=row,
            micro_batch_size=size,
            global_batch_size=batch,
            mean_packed_length=self.attended and min(self.attended, row),
            samples=plain,
        )
        return replace(self.job, config=own)


def _of_padded(rows: _Rows, lengths: Lengths, found: dict[str, Any]) -> Microbatches:
    """Each microbatch as long as its longest sample. Where ranks wait for each other in every
    microbatch, it is the longest of all; else the rank with the longest ones is waited for, whose
    sum is normal."""
    job, ranks = rows.job, rows.job.layout.data_parallel_size
    size = job.config.micro_batch_size
    together = job.layout.data_parallel_sharding in SHARDED_GRADIENTS or job.config.sync_each_batch
    mean, deviation = lengths.longest_of(size)
    found["padded_tokens"] = job.config.global_batch_size * mean
    if together:
        mean, _ = lengths.longest_of(size * ranks)
    else:
        mean += expected_most(ranks) * deviation / sqrt(job.num_microbatches)
    worst = rows.made(lengths.longest)
    return Microbatches(**found, worst=worst, mean=rows.made(min(mean, lengths.longest)))


def _of_packs(rows: _Rows, lengths: Lengths, capacity: int, found: dict[str, Any]) -> Microbatches:
    """Packs of up to `capacity` tokens; each rank has as many as the one that needs most."""
    job, samples, ranks = rows.job, found["samples"], rows.job.layout.data_parallel_size
    if job.config.samples.lengths and len(lengths.values) == 1:
        capacity -= capacity % lengths.longest  # whole samples
    mean = lengths.mean
    deviation = sqrt(max(0.0, lengths.mean_square - mean**2) / samples)
    most = mean + (0.0 if job.config.samples.balanced else expected_most(ranks) * deviation)
    most = min(most, lengths.longest)
    count = max(1, ceil(_packs_of_sample(lengths, capacity) * samples * most / mean - _ROUNDING))
    if job.layout.virtual_pipeline_model_parallel_size > 1:
        count = _up(count, job.layout.pipeline_model_parallel_size)
    worst = max(lengths.longest, min(capacity, samples * lengths.longest))
    return Microbatches(
        **found,
        worst=rows.made(worst, count),
        mean=rows.made(min(worst, samples * most / count), count),
        capacity=capacity,
    )


_LEVELS: Final = range(1, 9)
"""Of a bin's parts: of how many of them samples are counted that are longer (a judgement)."""


def _packs_of_sample(lengths: Lengths, capacity: int) -> float:
    """Packs over samples, at least: by tokens, and by samples of which only k are shorter than a
    pack (dual feasible functions, Fekete and Schepers 2001). What is longer has a pack alone."""
    alone = 1 - lengths.not_above(capacity)
    within = [(value, share) for value, share in lengths if value <= capacity]
    counted = [sum(share * value for value, share in within) / capacity]
    for level in _LEVELS:
        parts = (share * (-(-(level + 1) * value // capacity) - 1) for value, share in within)
        counted.append(sum(parts) / level)
    return alone + max(counted)


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
