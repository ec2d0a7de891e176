"""The head of the page: the job, and everything that was assumed about it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from advisor.answer.answer import Answer, CalibrationNote
from advisor.base.units import counted, human_count
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Provenance
from advisor.job.job import AttnImplementation, CudaGraphImpl, Job, JobConfig, Optimizer
from advisor.job.layout import SHARDED_GRADIENTS, ParallelLayout
from advisor.job.pipeline_split import ModelChunk
from advisor.job.reinforcement import Engine, Reference, Reinforcement
from advisor.job.tuning import ALL_LINEAR, Adapter, StoredAs
from advisor.models.options import AttentionBackend, CpCommType, TokenDispatcher
from advisor.report.blocks import Block, Fitted, dotted_lines, group, labelled_rows
from advisor.report.wording import gib

_PROVENANCE = {
    Provenance.MEASURED: "measured on this type of machine",
    Provenance.PUBLISHED: "published runs",
    Provenance.DATASHEET: "not measured on this type of machine",
}
_MARGIN = 11
_GAP = 3
_DOT = " · "


def header(
    advice: Answer, *, has_bars: Callable[[int], bool], search_layout: bool = False
) -> Block:
    """Model and hardware, layout, what it runs with, budget, calibration and the advisor's own
    choices.

    Where a search chose the layout, it is not the preset's; where layouts are ranked, it is that
    of row 1. has_bars: whether the ranking has bars on a page of a width.
    """
    preset = next((text for text in advice.assumptions if text.startswith("preset ")), "")
    others = [text for text in advice.assumptions if text != preset]
    words = layout_words(advice.job.layout, advice.job.config.optimizer)
    layout = f"row 1: {words}" if search_layout else words
    if advice.searched:
        preset, others = "", [*filter(None, [preset]), *others]
    runs = run_words(advice.job)
    rows: list[tuple[str, Block]] = [
        ("layout", _both_ends(layout, preset)),
        *([("trains", _dotted([tuned]))] if (tuned := tuning_words(advice.job)) else []),
        *([("runs with", _dotted(runs))] if runs else []),
        ("budget", _budget(advice, has_bars)),
        ("calibration", calibration_words(advice.calibration)),
    ]
    lists = (
        ("measured", measured_words(advice)),
        ("known error", [advice.calibration.known_error]),
        ("assumed", others),
        ("recipe", [text.removeprefix("recipe ") for text in advice.recipe_differs]),
        ("differs", _unlike(advice.differences)),
    )
    rows += [(name, _dotted(words)) for name, words in lists if any(words)]
    head = Fitted(partial(dotted_lines, _job_words(advice.job)), "bold")
    return group(head, labelled_rows(rows, margin=_MARGIN))


def measured_words(advice: Answer) -> list[str]:
    """What runs of `--calibration` say of the answer; nothing without one."""
    if advice.calibration.learned is None:
        return []
    from advisor.report.measuring import learned_words

    return learned_words(advice.calibration.learned)


def _unlike(differences: tuple[str, ...]) -> list[str]:
    """``from recipe NAME`` once, where all differ from the same one, then what differs from it."""
    endings = {text[text.rfind(_SHARED) :] for text in differences if _SHARED in text}
    if len(endings) != 1 or not all(_SHARED in text for text in differences):
        return list(differences)
    ending = endings.pop()
    return [f"from {ending.strip(' ()')}", *(text.removesuffix(ending) for text in differences)]


_SHARED = " (recipe "


def _dotted(words: list[str]) -> Fitted:
    return Fitted(partial(dotted_lines, words))


def _both_ends(left: str, right: str) -> Fitted:
    """`left` and `right` on one line where they fit with a gap, else below each other."""

    def lines(width: int) -> list[str]:
        parts = dotted_lines(left.split(_DOT), width)
        gap = width - len(left) - len(right)
        if not right or (len(parts) == 1 and gap >= _GAP):
            return [*parts[:-1], f"{parts[-1]}{' ' * gap}{right}".rstrip()]
        return [*parts, *dotted_lines(right.split(_DOT), width)]

    return Fitted(lines)


def layout_words(layout: ParallelLayout, optimizer: Optimizer = Optimizer.ADAM) -> str:
    """``TP 4 +SP · PP 4 · VPP 5 · DP 2 · distributed optimizer``; degrees of one left out; of one
    GPU ``one GPU``."""
    if layout.world_size == 1:
        return _DOT.join(["one GPU", *[str(optimizer)] * optimizer.is_muon])
    sp = " +SP" if layout.sequence_parallel else ""
    parts = [f"TP {layout.tensor_model_parallel_size}{sp}"]
    stages = (
        ("CP", layout.context_parallel_size),
        ("PP", layout.pipeline_model_parallel_size),
        ("VPP", layout.virtual_pipeline_model_parallel_size),
    )
    experts = (
        ("EP", layout.expert_model_parallel_size),
        ("ETP", layout.expert_tensor_parallel_size or 1),
    )
    parts += [f"{name} {degree}" for name, degree in stages if degree > 1]
    parts += _split_words(layout)
    parts += [f"{name} {degree}" for name, degree in experts if degree > 1]
    if layout.context_parallel_size > 1 and layout.cp_comm_type is not CpCommType.P2P:
        parts[1] += f" {layout.cp_comm_type}"
    parts.append(f"DP {layout.data_parallel_size}")
    parts.append(str(optimizer) if optimizer.is_muon else _sharding_words(layout))
    return _DOT.join(parts)


def _split_words(layout: ParallelLayout) -> list[str]:
    """How layers are split that PP does not divide: ``split Et*4|(t*4|)*14tL``."""
    if layout.pipeline_model_parallel_layout:
        return [f"pipeline split {layout.pipeline_model_parallel_layout}"]
    ends = (
        ("first", layout.num_layers_in_first_pipeline_stage),
        ("last", layout.num_layers_in_last_pipeline_stage),
    )
    return [f"{which} stage {layers} layers" for which, layers in ends if layers is not None]


def _sharding_words(layout: ParallelLayout) -> str:
    if layout.data_parallel_sharding is not None:
        replicas = layout.data_parallel_replicate_size
        of_each = f" in each of {replicas} replicas" if replicas > 1 else ""
        return f"DP sharding {layout.data_parallel_sharding}{of_each}"
    return "distributed optimizer" if layout.use_distributed_optimizer else "optimizer not sharded"


def tuning_words(job: Job) -> str:
    """``LoRA rank 16 on all linear layers over NF4 weights, 43.6 M of 8.19 B trained``; nothing
    where everything is trained."""
    if job.config.tuning.trains_all:
        return ""
    from advisor.layers.parameters import parameter_count
    from advisor.layers.shape import RankShape
    from advisor.memory.static import trained_elements

    tuning, model = job.config.tuning, replace(job.model, make_vocab_size_divisible_by=1)
    shape = RankShape(model=model, seq_length=1, micro_batch_size=1, tuning=tuning)
    trained, _ = trained_elements(shape, (ModelChunk(model.layer_kinds, True, True),))
    whole = parameter_count(model).total
    count = f"{human_count(trained)} of {human_count(whole)} trained"
    what = [name for name, frozen in _FROZEN.items() if getattr(tuning, frozen)]
    if tuning.num_trainable_layers is not None:
        what = [f"the last {tuning.num_trainable_layers} layers"]
    if not tuning.has_adapter:
        said = "" if tuning.num_trainable_layers is not None else "all but "
        return f"{said}{', '.join(what)}: {count}"
    everywhere = ALL_LINEAR in tuning.target_modules
    where = "all linear layers" if everywhere else ", ".join(tuning.target_modules)
    over = _STORED.get(tuning.base_weights, "")
    saved = f", {', '.join(tuning.modules_to_save)} whole" if tuning.modules_to_save else ""
    return f"{_ADAPTERS[tuning.adapter]} rank {tuning.rank} on {where}{over}{saved}: {count}"


_ADAPTERS: Final = {Adapter.LORA: "LoRA", Adapter.DORA: "DoRA"}
_STORED: Final = {StoredAs.NF4: " over NF4 weights (QLoRA)", StoredAs.INT8: " over 8-bit weights"}
_FROZEN: Final = {
    "the embedding": "freeze_embedding",
    "the output layer": "freeze_output",
    "the vision tower": "freeze_vision_model",
    "its projection": "freeze_vision_projection",
}


def run_words(job: Job) -> list[str]:
    """What moves a step besides the layout, where it is on: CUDA graphs, overlap, the dispatcher of
    the experts' tokens, torch.compile; and overlap of data parallelism where it is off."""
    model, layout, config = job.model, job.layout, job.config
    sends = model.num_moe_experts is not None and layout.expert_model_parallel_size > 1
    flex = model.moe_token_dispatcher_type is TokenDispatcher.FLEX
    backend = f" ({model.moe_flex_dispatcher_backend})" if flex else ""
    overlaps_experts = sends and layout.overlap_moe_expert_parallel_comm
    alone = layout.data_parallel_size * layout.context_parallel_size == 1
    shards = layout.data_parallel_sharding in SHARDED_GRADIENTS  # FSDP overlaps whatever is asked
    said = {
        "torch.compile": config.compiles_loss,
        "torch.compile without the loss": config.torch_compile and not config.compiles_loss,
        graph_words(config): config.cuda_graph_impl is not CudaGraphImpl.NONE,
        f"dispatcher {model.moe_token_dispatcher_type}{backend}": sends,
        "EP overlap": overlaps_experts and not layout.delay_wgrad_compute,
        "EP overlap with delayed weight gradients": overlaps_experts and layout.delay_wgrad_compute,
        "shared experts overlap the token exchange": sends and model.moe_shared_expert_overlap,
        "TP overlap": layout.sequence_parallel and layout.tp_comm_overlap,
        "no DP overlap": not (alone or shards or layout.overlap_grad_reduce),
        _ATTENTION.get(model.attention_backend, ""): model.attention_backend in _ATTENTION,
        f"attn_implementation {config.attn_implementation}": config.attn_implementation
        is not AttnImplementation.SDPA,
        "Liger kernels": config.use_liger_kernel,
        f"head {config.head.words}": bool(config.head.words),
    }
    return [words for words, on in said.items() if on] + _phase_words(config.rl)


def _phase_words(rl: Reinforcement) -> list[str]:
    """``GRPO``, ``vllm with 0.6 of the GPU, TP 2, sleep level 1``, and what waits where."""
    if not rl.has_phases:
        return []
    engine = f"{rl.engine} with {rl.gpu_memory_utilization:g} of the GPU"
    tensor = rl.engine_tensor_parallel_size
    engine += f", TP {tensor}" * (tensor > 1) + f", sleep level {rl.sleep_level}"
    away = [name for name in ("params", "gradients", "optimizer") if getattr(rl, f"offload_{name}")]
    said = {
        engine if rl.colocated else f"{rl.engine} on other GPUs": rl.engine is not Engine.NONE,
        f"{', '.join(away)} on the host between phases": away,
        f"reference: {rl.reference}": rl.reference is not Reference.NONE,
    }
    return [rl.algorithm.upper(), *(words for words, on in said.items() if on)]


_ATTENTION: Final = {
    AttentionBackend.FLASH: "FlashAttention-2",
    AttentionBackend.FUSED: "cuDNN's attention",
    AttentionBackend.UNFUSED: "unfused attention",
}
"""Kernels that somebody has named; which one `auto` takes depends on the GPU."""


def graph_words(config: JobConfig) -> str:
    """``CUDA graphs of moe_router, moe_preprocess (transformer_engine)``."""
    impl = config.cuda_graph_impl
    if impl is CudaGraphImpl.FULL_ITERATION:
        return "one CUDA graph of the whole iteration"
    return f"CUDA graphs of {', '.join(config.cuda_graph_modules) or 'whole layers'} ({impl})"


def framework_words(job: Job) -> str:
    """``Megatron Core 0.19 with Transformer Engine``."""
    return parts_of(job.config.framework).spelling.title(job)


def _budget(advice: Answer, has_bars: Callable[[int], bool]) -> Fitted:
    def lines(width: int) -> Sequence[str]:
        words = budget_words(advice) + " (full bar)" * has_bars(width + _MARGIN + 2)
        return _both_ends(words, framework_words(advice.job)).fit(width)

    return Fitted(lines)


def budget_words(advice: Answer) -> str:
    """``77.1 of 79.1 GiB usable per GPU``: the budget, and what the card has; one number where they
    are equal."""
    best = advice.chosen
    card = advice.job.gpu.memory_bytes
    budget = best.evaluation.budget_bytes if best else advice.job.config.memory_budget_bytes
    of_card = f" of {gib(card)}" if budget and budget != card else ""
    return f"{gib(budget or card)}{of_card} GiB usable per GPU"


def _job_words(job: Job) -> list[str]:
    from advisor.layers.parameters import parameter_count

    config = job.config
    return [
        job.model.name,
        f"{human_count(parameter_count(job.model).total)} parameters",
        f"{job.num_gpus} x {job.gpu.name}",
        str(config.precision),
        *row_words(config),
    ]


def row_words(config: JobConfig) -> Iterator[str]:
    """Sequence and batches; of samples how long the longest is, and how rows are filled."""
    said, budget, length = config.samples, config.samples.token_budget, config.seq_length
    samples = "packed in rows of" if said.packed and budget is None else "of at most"
    yield f"samples {samples} {length} tokens" if said.varies else f"sequence {length}"
    if said.image_tokens:
        yield f"{said.image_tokens} tokens of {counted(said.images, 'image')}"
    packs = f"packs of {budget} tokens per GPU"
    yield packs if budget is not None else f"micro batch {config.micro_batch_size}"
    yield f"global batch {config.global_batch_size}{' pairs' * (config.rl.sequences > 1)}"


def calibration_words(note: CalibrationNote) -> str:
    """Which calibration, what it was fitted to, and its band."""
    return f"{note.name} ({_PROVENANCE[note.provenance]}): {note.summary}".rstrip(": ")
