"""Every rule of a PyTorch stack, found by asking it: settings and jobs of all kinds are tried."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from advisor.answer.advice import Rejection
from advisor.frameworks.torch.adapter import TorchStack
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    OpPolicy,
    Option,
    TorchSetting,
    budget,
    every,
    op,
    sequential,
    uniform,
    with_options,
)
from advisor.job.job import Framework, Job
from advisor.models.spec import Activation, TransformerImpl


def known_rules(stack: TorchStack, job: Job) -> tuple[Rejection, ...]:
    """What the release of `job` refuses, one example of each rule by its name."""
    found: dict[str, Rejection] = {}
    for one, setting in product(_jobs(stack, job), _settings(job)):
        for rejection in stack.check(setting, one):
            found.setdefault(rejection.rule, rejection)
    return tuple(found[rule] for rule in sorted(found))


def _settings(job: Job) -> Iterator[TorchSetting]:
    """Every kind of setting, and what is out of range."""
    layers = job.model.num_layers
    yield from (NONE, FULL, replace(FULL, use_reentrant=True), every(2), every(layers + 1))
    yield from (with_options(FULL, option) for option in Option)
    yield from (sequential(number) for number in (1, 2, layers + 1))
    yield with_options(sequential(2), Option.OFFLOAD)
    yield from (op(policy) for policy in OpPolicy)
    yield from (uniform(2), budget(0.5))


def _jobs(stack: TorchStack, job: Job) -> Iterator[Job]:
    """The job under every sharding, with states on the host where they may go there, with the
    layers of transformers, an activation whose graph is not known, layouts that the stack does not
    have here or does not divide, and experts on a GPU before Hopper."""
    yield job
    if stack.framework is Framework.DEEPSPEED:
        host = replace(job.config, optimizer_cpu_offload=True, param_cpu_offload=True)
        configs = (host, replace(host, optimizer_offload_fraction=0.5))
        for sharding, config in product(stack.shardings, configs):
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
    if stack.framework is Framework.HUGGINGFACE:
        yield replace(job, config=replace(job.config, sync_each_batch=True))
    if stack.framework is not Framework.TORCHTITAN:
        return
    experts = replace(job.model, num_moe_experts=8, moe_ffn_hidden_size=1024)
    cut = replace(job.layout, expert_model_parallel_size=2, expert_tensor_parallel_size=2)
    halves = replace(halves, sequence_parallel=True)
    piped = replace(job.layout, pipeline_model_parallel_size=2, data_parallel_size=halved)
    yield replace(job, layout=piped)
    yield replace(job, layout=cut, model=experts)
    yield replace(job, layout=halves, model=replace(job.model, num_query_groups=1))
    yield replace(job, model=experts, gpu=replace(job.gpu, compute_capability=8.0))
