"""What the request did not say, in the words of the page's `assumed` line."""

from collections.abc import Iterator

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.base.units import human_bytes
from advisor.frameworks.newer_releases import as_newest, is_newer
from advisor.frameworks.registry import parts_of
from advisor.hardware.gpu import Gpu, Vendor
from advisor.job.job import NEWEST_TRANSFORMER_ENGINE, CudaGraphImpl, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.job.reinforcement import Reference
from advisor.models.layer_kinds import LINEAR_MIXERS
from advisor.models.options import CrossEntropyFusion
from advisor.models.spec import ModelSpec
from advisor.request.given import Given
from advisor.request.layout_fields import DEGREES, degree_words
from advisor.request.recipe_choice import RecipeChoice
from advisor.request.recipes import Experiment
from advisor.time.rank_links import node_size


class Facts(Struct, frozen=True, kw_only=True):
    """A job on its way, as far as the page's lines about it need it.

    layout: None where a search chooses it. first_framework: the one that is not named, as it is the
    usual one. sees: whether the model, as it was asked for, has a vision tower.
    """

    given: Given
    choice: RecipeChoice
    model: ModelSpec
    config: JobConfig
    layout: ParallelLayout | None
    gpu: Gpu
    num_gpus: int
    first_framework: str
    sees: bool = False


def assumed_lines(facts: Facts) -> tuple[str, ...]:
    """Of all that the request leaves open, in the page's order."""
    of_job = *_of_source(facts), *_of_samples(facts.config), *_of_options(facts), *_of_images(facts)
    of_job += tuple(_of_phases(facts))
    of_job += tuple(_of_model(facts))
    return (*of_job, *_of_gpu(facts.gpu), *_of_links(facts.gpu, facts.num_gpus))


def _of_source(facts: Facts) -> Iterator[str]:
    """The framework; the recipe and how it was changed; without one, batch and optimizer."""
    framework, preset = facts.config.framework, facts.choice.preset
    if "framework" not in facts.given.job_fields and framework != facts.first_framework:
        yield f"framework {framework}"
    yield from _of_releases(facts)
    if preset is None:
        yield from _of_batch(facts)
    elif facts.choice.as_it_stands is None:
        yield f"batch of preset {preset.name}"
    else:
        yield f"preset {preset.name}"
        if facts.choice.borrowed:
            yield from _scaled(preset, facts)
        if facts.layout is not None and not preset.splits_as_published:
            yield "layers split as evenly as possible (the preset does not state its split)"
    if preset is not None and facts.gpu.same_chip_as:
        yield f"recipes of {facts.gpu.same_chip_as}: the same chip, with faster NVLink"
    yield from _of_lent(facts)
    yield from _of_left_out(facts)


def _of_releases(facts: Facts) -> Iterator[str]:
    """Those that are asked for and newer than the newest known."""
    asked, config = facts.given.job_fields, facts.config
    release, engine = asked.get("framework_version", ""), asked.get("transformer_engine_version")
    if said := as_newest(config.framework, release, config.framework_version):
        yield said
    if engine and is_newer(engine, (NEWEST_TRANSFORMER_ENGINE,)):
        yield as_newest("Transformer Engine", engine, NEWEST_TRANSFORMER_ENGINE)


def _of_batch(facts: Facts) -> Iterator[str]:
    chosen = facts.layout is None or bool(facts.choice.left_open)
    for name, words, is_open in (
        ("seq_length", "sequence length", False),
        ("micro_batch_size", "micro batch", chosen or facts.config.samples.token_budget),
        ("global_batch_size", "global batch", False),
    ):
        if name not in facts.given.job_fields and not is_open:
            yield f"{words} {getattr(facts.config, name)}"
    if facts.config.optimizer.is_muon and "optimizer" not in facts.given.job_fields:
        yield f"{facts.config.optimizer} as in the nearest recipe"


def _of_samples(config: JobConfig) -> Iterator[str]:
    """What is not known of the samples' lengths, and how ranks get them."""
    samples = config.samples
    if not samples.lengths and samples.varies:
        yield f"all samples of {config.seq_length} tokens (no --lengths)"
    elif "," in samples.lengths and "=" in samples.lengths:
        yield "lengths log-normal between quantiles, one sample in 10,000 as long as max"
    if samples.lengths and samples.token_budget is not None and not samples.balanced:
        yield "samples go to ranks at random (samples.balanced=true if by length)"


def _of_lent(facts: Facts) -> Iterator[str]:
    """Whose options are in force; those that no other line says."""
    lent = facts.choice.lent
    if lent is None or not (lent.layout or lent.job or lent.model):
        return
    yield f"options of {lent.origin.detail}"
    overlaps = facts.layout is not None and facts.layout.tp_comm_overlap
    cuts = facts.layout is not None and facts.layout.tensor_model_parallel_size > 1
    if overlaps and cuts and lent.layout.get("tp_comm_overlap"):
        yield "TP communication overlapped"
    if lent.job.get("fp8_param_gather") and facts.config.fp8_param_gather:
        yield "weights of linear layers kept only in 8 bits"


def _of_left_out(facts: Facts) -> Iterator[str]:
    """What of a recipe gives way to what is given."""
    preset, layout, given = facts.choice.as_it_stands, facts.layout, facts.given.layout_fields
    for name in DEGREES:
        lent = preset and getattr(preset.layout, name)
        if layout and lent and getattr(layout, name) != lent and name not in given:
            yield f"{degree_words(layout, (name,))} instead of {lent} to go with the given values"
    left_out = [path for path in facts.choice.left_out if path.partition(".")[2] not in DEGREES]
    if left_out:
        yield f"{', '.join(left_out)} of the recipe left out: refused with the given values"


def _scaled(preset: Experiment, facts: Facts) -> Iterator[str]:
    """What is taken from a preset for another number of GPUs."""
    layout, batch = facts.layout, "global_batch_size" not in facts.given.job_fields
    if layout is not None:
        its = "the preset's layout" + " and batch per replica" * batch
        given = "" if layout == preset.layout else ", except for values given"
        yield f"{its}{given}; DP {layout.data_parallel_size}"
    elif batch:
        yield "the preset's global batch, scaled with the number of GPUs"


def _of_options(facts: Facts) -> Iterator[str]:
    config, graphs = facts.config, facts.choice.without_graphs
    if config.cuda_graph_impl is not CudaGraphImpl.NONE:
        yield "CUDA graphs use a separate memory pool"
    elif graphs and facts.choice.as_it_stands is not None:
        asked = f"job.cuda_graph_impl={graphs['cuda_graph_impl']}"
        yield f"the recipe's CUDA graphs are left out; add {asked} to have them"
    if "compile_components" in facts.given.job_fields and not config.torch_compile:
        yield "job.compile_components has no effect without job.torch_compile=true"
    if config.deterministic_mode:
        yield "deterministic_mode: step times are of the default kernels, not of deterministic ones"
    if config.main_grads_dtype is not DType.FP32:
        yield f"{'fp16' if config.main_grads_dtype is DType.FP16 else 'bf16'} main gradients"
    if config.optimizer_cpu_offload:
        yield "Adam on the host at 50 GB/s per GPU"
    if config.expandable_segments:
        yield "expandable segments"


def _of_phases(facts: Facts) -> Iterator[str]:
    """A reference model that nobody named, and a batch that is not the preset's."""
    said, rl = (*facts.given.keys, *facts.given.omitted), facts.config.rl
    if rl.has_phases and facts.choice.preset and "micro_batch_size" not in facts.given.job_fields:
        yield "micro batch 1"
    unsaid = "rl.algorithm" not in said and facts.given.takes_recipe
    if unsaid and parts_of(facts.config.framework).cycles:
        yield "the update alone (rl.algorithm=grpo counts all phases)"
    if rl.reference is Reference.GPU and "rl.reference" not in said:
        yield "a reference model (rl.reference=none if its log-probabilities are computed before)"


def _of_images(facts: Facts) -> Iterator[str]:
    """Whether a tower that the model has is predicted."""
    said = {*facts.given.keys} - facts.given.omitted if not facts.sees else frozenset()
    if facts.sees and facts.model.vision is None:
        yield f"text alone: vision towers are not modelled for {facts.config.framework}"
    elif facts.sees and not facts.config.samples.image_tokens:
        yield "text alone, the tower does not run: samples.image_tokens=N gives it images"
    elif facts.config.samples.max_pixels:
        yield "each image as large as max_pixels"
    elif {"samples.image_tokens", "tuning.freeze_vision_model"} & said:
        yield f"text alone: no vision tower is modelled for {facts.model.name}"


def _of_model(facts: Facts) -> Iterator[str]:
    model, config = facts.model, facts.config
    if model.cross_entropy_fusion is not CrossEntropyFusion.NONE:
        yield f"fused cross entropy ({model.cross_entropy_fusion})"
    if model.num_moe_experts is not None:
        if config.moe_load_imbalance != 1.0:
            yield f"expert load: busiest/mean {config.moe_load_imbalance:g}"
        elif config.moe_router_force_load_balancing:
            yield "expert load: forced to be balanced (busiest/mean 1.0)"
        elif facts.layout is None or facts.layout.expert_model_parallel_size > 1:
            yield (
                "expert load: balanced in time, uneven over EP ranks in memory: peaks that 9 of 10 "
                "runs stay within (arXiv 2408.15664)"
            )
    linear = sorted({str(kind.mixer) for kind in model.layer_kinds if kind.mixer in LINEAR_MIXERS})
    if linear:
        which = " and ".join(linear)
        yield f"{which} layers modelled from their kernels' source code, not measured"


def _of_gpu(gpu: Gpu) -> Iterator[str]:
    """Memory that no source gives, or that a display shares; AMD's libraries."""
    if "memory_torch_total_gib" in gpu.assumed_fields:
        usable = human_bytes(gpu.memory_bytes)
        yield f"{usable} usable (an estimate: what torch reports for this GPU is not published)"
    if not gpu.peer_to_peer:
        yield "no display on the GPU (it would take GPU memory)"
    if gpu.vendor is Vendor.AMD:
        yield "ROCm and RCCL take as much memory as CUDA and NCCL"


def _of_links(gpu: Gpu, num_gpus: int) -> Iterator[str]:
    """GPUs without NVLink, and a network that no reference system has."""
    if num_gpus > 1 and not gpu.is_joined:
        rate = f"{gpu.host_link_bytes_per_second / 1e9:.0f} GB/s"
        through = "PCIe" if gpu.peer_to_peer else "host memory (no peer-to-peer access)"
        yield f"no NVLink: GPUs of a server communicate over {through}, {rate} per GPU"
    if num_gpus > node_size(gpu) and "internode_gb_per_second" in gpu.assumed_fields:
        rate = f"{gpu.internode_bytes_per_second / 1e9:.0f} GB/s"
        yield f"servers of {node_size(gpu)} GPUs, with a network of {rate} per GPU"
