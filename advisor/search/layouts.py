"""Every layout and micro batch of a job: what a search chooses from.

Layouts come in groups: those of a group have the same layers on a rank (TP, CP, EP, ETP) and differ
in pipeline, sharding and micro batch, so that what bounds a group bounds all of them.
Jobs that every search looks at come from the usual answer and from recipes.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from advisor.base.errors import UserError, divisors
from advisor.frameworks.part_types import Degrees
from advisor.frameworks.registry import parts_of, runs_recipes
from advisor.job.job import Job
from advisor.job.layout import EVEN, ParallelLayout, legal_tensor_parallel_sizes
from advisor.job.pipeline_split import chunk_texts
from advisor.models.options import CpCommType
from advisor.plan.split import split_evenly, virtual_degrees
from advisor.request.layout_fields import SEARCHED
from advisor.request.recipe_choice import experiments_on, layouts_elsewhere
from advisor.request.resolve import Resolution
from advisor.search.changed_options import CHOSEN

T = TypeVar("T")


def layouts(resolution: Resolution) -> Iterator[ParallelLayout]:
    """All of them; a Job says whether one is legal."""
    return chain.from_iterable(of_group(resolution, group) for group in groups(resolution))


def groups(resolution: Resolution) -> Iterator[ParallelLayout]:
    """What layouts have in common except pipeline and sharding: one layout of each, without."""
    every = dense_groups(resolution)
    return chain.from_iterable(with_experts(resolution, dense) for dense in every)


def dense_groups(resolution: Resolution) -> Iterator[ParallelLayout]:
    """What groups have in common except the experts' degrees."""
    degrees = parts_of(resolution.config.framework).jobs.degrees
    gpus, base = resolution.num_gpus, _base(resolution)
    legal = legal_tensor_parallel_sizes(resolution.model) if degrees.tensor else (1,)
    for tp in _wanted(resolution, "tensor_model_parallel_size", legal):
        if gpus % tp:
            continue
        for cp, kind, sizes in _context(resolution, degrees, gpus // tp):
            cut = _cuts_sequence(resolution, tp, cp)
            yield replace(
                base,
                tensor_model_parallel_size=tp,
                sequence_parallel=cut,
                tp_comm_overlap=base.tp_comm_overlap and cut,
                context_parallel_size=cp,
                cp_comm_type=kind,
                hierarchical_context_parallel_sizes=sizes,
                pipeline_model_parallel_size=1,
                virtual_pipeline_model_parallel_size=1,
                data_parallel_size=gpus // (tp * cp),
                **EVEN,
            )


def _base(resolution: Resolution) -> ParallelLayout:
    """What is resolved of a layout, with what is given of it except degrees."""
    given = {k: v for k, v in resolution.layout_fields.items() if k not in SEARCHED}
    return replace(resolution.layout or ParallelLayout(), **given)


def with_own_options(resolution: Resolution, layout: ParallelLayout) -> ParallelLayout:
    """`layout` with the options that the resolution has, and no others."""
    base = _base(resolution)
    own = {name: getattr(base, name) for name in base.__struct_fields__ if name not in CHOSEN}
    overlaps = base.tp_comm_overlap and layout.sequence_parallel
    return replace(layout, **{**own, "tp_comm_overlap": overlaps})


def of_group(resolution: Resolution, group: ParallelLayout) -> Iterator[ParallelLayout]:
    """Layouts of a group: every PP that leaves EP x ETP ranks together, VPP, split and sharding."""
    degrees = parts_of(resolution.config.framework).jobs.degrees
    base = resolution.layout or ParallelLayout()
    own = {name: resolution.layout_fields.get(name, getattr(base, name)) for name in EVEN}
    ranks = group.expert_model_parallel_size * group.expert_tensor_degree
    experts = resolution.model.num_moe_experts is not None
    stages = divisors(group.data_parallel_size) if degrees.pipeline else (1,)
    for pp in _wanted(resolution, "pipeline_model_parallel_size", stages):
        if group.data_parallel_size % pp or (experts and resolution.num_gpus // pp % ranks):
            continue
        dp = group.data_parallel_size // pp
        staged = replace(group, **own, pipeline_model_parallel_size=pp, data_parallel_size=dp)
        for split in _splits(resolution, staged):
            for sharding in _wanted(resolution, "data_parallel_sharding", degrees.shardings):
                layout = replace(split, data_parallel_sharding=sharding)
                if is_as_given(resolution, layout):
                    yield layout


def micro_batches(resolution: Resolution, layout: ParallelLayout) -> tuple[int, ...]:
    """Those that give every data-parallel rank whole microbatches; the one that was given."""
    config = resolution.config
    if not resolution.micro_batch_is_free:
        return (config.micro_batch_size,)
    each, rest = divmod(config.global_batch_size, layout.data_parallel_size)
    return () if rest else divisors(each)


def is_as_given(resolution: Resolution, layout: ParallelLayout) -> bool:
    """Whether a layout has all that is given of it. Collectives of TP can run during products where
    there are some, and the sequence is cut."""
    given = dict(resolution.layout_fields)
    if not layout.sequence_parallel:
        given.pop("tp_comm_overlap", None)
    return all(getattr(layout, name) == value for name, value in given.items())


def _cuts_sequence(resolution: Resolution, tp: int, cp: int) -> bool:
    """Sequence parallelism with every TP, unless it cannot cut the sequence."""
    if tp == 1:
        return False
    config = resolution.config
    cuts = config.samples.varies or config.seq_length % (tp * (2 * cp if cp > 1 else 1)) == 0
    return bool(resolution.layout_fields.get("sequence_parallel", cuts))


_Context = tuple[int, CpCommType, tuple[int, ...] | None]
"""CP, its kind, and the sizes of its two levels."""


def _context(resolution: Resolution, degrees: Degrees, ranks: int) -> Iterator[_Context]:
    """CP by each of the framework's kinds; a2a+p2p with every two sizes."""
    given = resolution.layout_fields
    base = resolution.layout or ParallelLayout()
    padded, whole = resolution.config.samples.varies, resolution.config.seq_length
    kinds = _wanted(resolution, "cp_comm_type", degrees.context or (base.cp_comm_type,))
    for cp in _wanted(resolution, "context_parallel_size", divisors(ranks)):
        if cp == 1:
            yield 1, given.get("cp_comm_type", base.cp_comm_type), None
        elif degrees.context and ranks % cp == 0 and (padded or whole % cp == 0):
            for kind in kinds:
                yield from ((cp, kind, sizes) for sizes in _levels(resolution, cp, kind))


def _levels(
    resolution: Resolution, cp: int, kind: CpCommType
) -> tuple[tuple[int, ...] | None, ...]:
    given = resolution.layout_fields.get("hierarchical_context_parallel_sizes")
    if kind is not CpCommType.A2A_P2P or given:
        return (given,)
    return tuple((inner, cp // inner) for inner in divisors(cp)[1:-1])


def with_experts(resolution: Resolution, dense: ParallelLayout) -> Iterator[ParallelLayout]:
    """`dense` with every EP that divides the experts; they are cut by a divisor of TP."""
    tp = dense.tensor_model_parallel_size
    for ep, etp in expert_degrees(resolution, tp):
        if resolution.num_gpus % (ep * (etp or tp)) == 0:
            yield replace(dense, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)


def expert_degrees(resolution: Resolution, tp: int) -> Iterator[tuple[int, int | None]]:
    """EP and ETP next to a TP; of a job that spreads no experts, as its layout has them."""
    experts = resolution.model.num_moe_experts
    if experts is None or not parts_of(resolution.config.framework).jobs.degrees.experts:
        base = resolution.layout or ParallelLayout()
        yield base.expert_model_parallel_size, base.expert_tensor_parallel_size
        return
    for ep in _wanted(resolution, "expert_model_parallel_size", divisors(experts)):
        degrees = _wanted(resolution, "expert_tensor_parallel_size", tuple(_cuts(tp, ep)))
        yield from ((ep, etp) for etp in degrees)


def _cuts(tp: int, ep: int) -> Iterator[int | None]:
    """ETP up to TP; None, which is TP, where experts are as the other layers are."""
    yield from divisors(tp)[:-1]
    yield tp if ep > 1 else None


def _splits(resolution: Resolution, layout: ParallelLayout) -> Iterator[ParallelLayout]:
    """`layout` with every VPP that may split the layers: as it says itself, where it does; unless
    that was asked for, evenly as well, or nearly so. A job says whether the layers fit."""
    model, config = resolution.model, resolution.config
    own = () if layout.splits_evenly else _own_degrees(model.num_layers, layout)
    yield from (replace(layout, virtual_pipeline_model_parallel_size=vpp) for vpp in own)
    if any(resolution.layout_fields.get(name) for name in EVEN):
        return
    ways = parts_of(config.framework).jobs.splits(config)
    plain, as_text = replace(layout, **EVEN), ways.by_text
    if model.num_layers % layout.pipeline_model_parallel_size and not ways.unevenly:
        return
    for vpp in virtual_degrees(model, layout.pipeline_model_parallel_size):
        if vpp not in own:
            even = replace(plain, virtual_pipeline_model_parallel_size=vpp)
            yield split_evenly(model, even, as_text=as_text)


def _own_degrees(num_layers: int, layout: ParallelLayout) -> tuple[int, ...]:
    """VPP that could split the layers over the stages as `layout` says."""
    pp = layout.pipeline_model_parallel_size
    if pp == 1:
        return ()
    if layout.pipeline_model_parallel_layout:
        chunks = len(chunk_texts(layout.pipeline_model_parallel_layout))
        return (chunks // pp,) if chunks % pp == 0 else ()
    num_layers += layout.account_for_embedding_in_pipeline_split
    num_layers += layout.account_for_loss_in_pipeline_split
    return divisors(-(-num_layers // pp))


def _wanted(resolution: Resolution, name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    given = resolution.layout_fields.get(name)
    return values if given is None else (given,)


def known_jobs(resolution: Resolution) -> tuple[Job, ...]:
    """Legal ones, each once, the usual layout's first. What is given stays as it is."""
    return _legal(resolution, _jobs(resolution))


def _legal(resolution: Resolution, jobs: Iterable[Job]) -> tuple[Job, ...]:
    settings = parts_of(resolution.config.framework).settings
    return tuple(job for job in dict.fromkeys(jobs) if not settings.check_job(job))


def _jobs(resolution: Resolution) -> Iterator[Job]:
    """The layouts of recipes alone are theirs: batch and options are the job's."""
    if resolution.layout is not None and not resolution.open_degrees:
        with suppress(UserError):
            yield resolution.job(resolution.layout)
    if resolution.wanted is not None and runs_recipes(resolution.config.framework):
        recipes = experiments_on(resolution.wanted)
        pairs = ((one.layout, one.config.micro_batch_size) for one in recipes)
        yield from _with_layouts(resolution, pairs)


def seeds(resolution: Resolution) -> tuple[Job, ...]:
    """Legal jobs with the layouts of recipes for whatever GPUs, from which a search may start."""
    if resolution.wanted is None or not runs_recipes(resolution.config.framework):
        return ()
    return _legal(resolution, _with_layouts(resolution, layouts_elsewhere(resolution.wanted)))


def _with_layouts(
    resolution: Resolution, pairs: Iterable[tuple[ParallelLayout, int]]
) -> Iterator[Job]:
    """Jobs of layouts with a micro batch each, as far as they have what is given."""
    given = resolution.layout_fields
    degrees = {name: value for name, value in given.items() if name in SEARCHED}
    for layout, micro_batch_size in pairs:
        if all(getattr(layout, name) == value for name, value in degrees.items()):
            size = micro_batch_size if resolution.micro_batch_is_free else None
            with suppress(UserError):
                yield resolution.job(with_own_options(resolution, replace(layout, **given)), size)
