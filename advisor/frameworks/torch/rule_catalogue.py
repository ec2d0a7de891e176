"""Every rule of a PyTorch stack, found by asking it: settings and jobs of all kinds are tried."""

from collections.abc import Iterator
from itertools import product

from msgspec.structs import replace

from advisor.answer.answer import Rejection
from advisor.base.dtypes import Precision
from advisor.frameworks.framework_parts import RecomputeSettings
from advisor.frameworks.names import Framework
from advisor.frameworks.part_types import RulesOverview
from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Modifier,
    OpPolicy,
    TorchSetting,
    budget,
    by_block,
    every,
    op,
    sequential,
    uniform,
    with_options,
)
from advisor.frameworks.torch.supported_jobs import StackFacts
from advisor.hardware.gpu import Gpu
from advisor.job.job import AttnImplementation, Job
from advisor.models.options import Activation, CpCommType, TransformerImpl
from advisor.plan.recompute_plan import recomputes


def overview(facts: StackFacts, settings: RecomputeSettings, job: Job) -> RulesOverview:
    """What the release of a stack takes, and every rule of it with an example of a setting that it
    refuses."""
    return RulesOverview(
        label=f"{facts.label} {job.config.framework_version}",
        facts=tuple(_takes(facts)),
        rules=tuple(("", rule.rule, _example(rule)) for rule in known_rules(facts, settings, job)),
    )


def _example(rule: Rejection) -> str:
    setting = f"{rule.setting.spec}: " if recomputes(rule.setting) else ""
    return f"{setting}{rule.reason} ({rule.source})"


def _takes(facts: StackFacts) -> Iterator[tuple[str, str]]:
    yield "granularities", " ".join(facts.granularities)
    yield "op:", " ".join(facts.policies) or "none"
    yield "options", " ".join(f"+{option}" for option in facts.options) or "none"
    yield "sharding", " ".join(facts.shardings)
    titan = facts.framework == Framework.TORCHTITAN
    degrees = "FSDP, TP, CP and EP" if titan else "data and context parallelism"
    yield "jobs", f"{' or '.join(facts.precisions)}; dense and MoE models; {degrees}"


def known_rules(facts: StackFacts, settings: RecomputeSettings, job: Job) -> tuple[Rejection, ...]:
    """What the release of `job` refuses, one example of each rule by its name."""
    found: dict[str, Rejection] = {}
    for one, setting in product(_jobs(facts, job), _settings(job)):
        for rejection in settings.check(setting, one):
            found.setdefault(rejection.rule, rejection)
    return tuple(found[rule] for rule in sorted(found))


def _settings(job: Job) -> Iterator[TorchSetting]:
    """Every kind of setting, and what is out of range."""
    layers = job.model.num_layers
    yield from (NONE, FULL, replace(FULL, use_reentrant=True), every(2), every(layers + 1))
    yield from (with_options(FULL, option) for option in Modifier)
    yield from (sequential(number) for number in (1, 2, layers + 1))
    yield with_options(sequential(2), Modifier.OFFLOAD)
    yield replace(sequential(2), use_reentrant=True)
    yield from (op(policy) for policy in OpPolicy)
    yield from (uniform(2), budget(0.5))
    kept = BlockRegime(checkpointed=True, kept=("loss",))
    away = BlockRegime(checkpointed=True, on_host=(INPUT,))
    yield from (by_block((kept,)), by_block((kept,) * layers), by_block((away,) * layers))


def _jobs(facts: StackFacts, job: Job) -> Iterator[Job]:
    """The job under every sharding, with states on the host where they may go there, with the
    layers of transformers, an activation whose graph is not known, layouts that the stack does not
    have here or does not divide, steps in the backward, 8 bits, and experts and FlashAttention
    3 on a GPU before Hopper."""
    yield job
    often = job.config.global_batch_size * 2
    yield replace(
        job, config=replace(job.config, optimizer_in_backward=True, global_batch_size=often)
    )
    if facts.framework == Framework.DEEPSPEED:
        host = replace(job.config, optimizer_cpu_offload=True, param_cpu_offload=True)
        configs = (host, replace(host, optimizer_offload_fraction=0.5))
        for sharding, config in product(facts.shardings, configs):
            layout = replace(job.layout, data_parallel_sharding=sharding)
            yield replace(job, layout=layout, config=config)
    for changes in (
        {"transformer_impl": TransformerImpl.TRANSFORMERS},
        {"activation": Activation.QUICK_GEGLU},
    ):
        yield replace(job, model=replace(job.model, **changes))
    halved = job.num_gpus // 2
    halves = replace(job.layout, tensor_model_parallel_size=2, data_parallel_size=halved)
    yield replace(job, layout=halves)
    yield from _context_parallel_jobs(job)
    yield replace(job, config=replace(job.config, flat_parameters=True))
    third = replace(job.config, attn_implementation=AttnImplementation.FLASH_ATTENTION_3)
    yield replace(job, config=third, gpu=_ampere(job.gpu))
    if facts.framework == Framework.HUGGINGFACE:
        yield replace(job, config=replace(job.config, sync_each_batch=True))
    if facts.framework != Framework.TORCHTITAN:
        return
    yield replace(job, config=replace(job.config, precision=Precision.FP8_CURRENT))
    experts = replace(job.model, num_moe_experts=8, moe_ffn_hidden_size=1024)
    cut = replace(job.layout, expert_model_parallel_size=2, expert_tensor_parallel_size=2)
    halves = replace(halves, sequence_parallel=True)
    piped = replace(job.layout, pipeline_model_parallel_size=2, data_parallel_size=halved)
    yield replace(job, layout=piped)
    yield replace(job, layout=cut, model=experts)
    yield replace(job, layout=halves, model=replace(job.model, num_query_groups=1))
    yield replace(job, layout=replace(halves, tp_comm_overlap=True))
    yield replace(job, model=experts, gpu=_ampere(job.gpu))


def _ampere(gpu: Gpu) -> Gpu:
    """A GPU before Hopper; only its generation matters here."""
    return replace(gpu, name="A100-SXM-80GB", compute_capability=8.0)


def _context_parallel_jobs(job: Job) -> Iterator[Job]:
    """Over two ranks, of a kind that no stack has, with flat parameters, and with scores in
    Python."""
    ranks, kind = job.num_gpus // 2, CpCommType.A2A_P2P
    layout = replace(job.layout, context_parallel_size=2, data_parallel_size=ranks)
    yield replace(job, layout=layout, config=replace(job.config, flat_parameters=True))
    eager = replace(job.config, attn_implementation=AttnImplementation.EAGER)
    yield replace(job, layout=layout, config=eager)
    pairs = replace(layout, cp_comm_type=kind, hierarchical_context_parallel_sizes=(2, 1))
    yield replace(job, layout=pairs)
