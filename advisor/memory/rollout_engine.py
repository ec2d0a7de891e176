"""GPU memory of a rollout engine that shares its GPUs with the training, awake and asleep.

vLLM takes gpu_memory_utilization x the whole memory of the GPU and refuses to start where less is
free; the KV cache is what weights, activations and CUDA graphs leave of it. SGLang takes
mem_fraction_static x what is free when it starts for weights, graphs and KV cache, its
activations come on top. Asleep, an engine gives back its weights and its KV cache, nothing else.
Sources: vllm 0.33.0 v1/worker/gpu_worker.py (request_memory, determine_available_memory, sleep),
device_allocator/cumem.py; sglang 0.5.23 model_runner_components/kv_pool_runtime.py. Read, not run.
"""

from functools import lru_cache
from typing import Final

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.base.units import MIB
from advisor.job.job import Job
from advisor.job.reinforcement import Engine
from advisor.layers.parameters import parameter_count
from advisor.memory.allocator import COMMUNICATOR_BYTES, CONTEXT_BYTES
from advisor.models.layer_kind import SOFTMAX_MIXERS
from advisor.models.spec import ModelSpec

_SIXTEEN_BITS: Final = DType.BF16.itemsize
_GRAPHS_BYTES: Final = 600 * MIB
"""CUDA graphs of a decoder: a judgement, no source gives them by model."""
_BATCHED_TOKENS, _SEQUENCES = 8192, 256
"""Of one step of an engine: verl 0.9.1 trainer/config/rollout/rollout.yaml."""


class RolloutEngine(Struct, frozen=True, kw_only=True):
    """Bytes of one engine on one of its GPUs.

    weights: in 16 bits, cut by its tensor parallelism. kv_cache: what is left for it; not positive
    where nothing is. working: activations of its largest step, which it sets aside. stays: its CUDA
    context, communicator and CUDA graphs, which it holds asleep as well. tokens: that the KV
    cache holds.
    """

    weights: int
    kv_cache: int
    working: int
    stays: int
    tokens: int

    @property
    def awake(self) -> int:
        """All that it holds while it generates."""
        return self.weights + max(0, self.kv_cache) + self.working + self.stays


@lru_cache(maxsize=256)
def kv_bytes_per_token(model: ModelSpec, ranks: int) -> int:
    """Bytes of one token in the KV cache of one of `ranks` in 16 bits: keys and values of its heads
    in every layer that attends, at least one head; of multi-latent attention the one latent vector
    and its rotary part, whole on each. Windows are counted as if they were whole sequences."""
    total = 0
    for kind in model.layer_kinds:
        own = model.of_kind(kind)
        if kind.mixer not in SOFTMAX_MIXERS or kind.reuses_keys:
            continue
        if own.multi_latent_attention:
            total += own.kv_lora_rank + own.qk_pos_emb_head_dim
        else:
            total += 2 * -(-own.num_query_groups // ranks) * own.kv_channels
    return total * _SIXTEEN_BITS


def rollout_engine(job: Job, held: int) -> RolloutEngine | None:
    """The engine of `job`; None where none shares its GPUs. held: bytes of the GPU that the
    training holds when the engine starts, of which SGLang's share is counted."""
    rl, model, card = job.config.rl, job.model, job.gpu.memory_bytes
    if not rl.shares_gpus:
        return None
    ranks = rl.engine_tensor_parallel_size
    weights = -(-parameter_count(model).total // ranks) * _SIXTEEN_BITS
    graphs = _GRAPHS_BYTES + COMMUNICATOR_BYTES * (ranks > 1)
    working = _largest_step(model, ranks)
    of = card - held if rl.engine is Engine.SGLANG else card
    left = int(of * rl.gpu_memory_utilization) - weights - graphs
    if rl.engine is Engine.VLLM:
        left -= working
    return RolloutEngine(
        weights=weights,
        kv_cache=left,
        working=working,
        stays=graphs + CONTEXT_BYTES,
        tokens=max(0, left) // kv_bytes_per_token(model, ranks),
    )


def _largest_step(model: ModelSpec, ranks: int) -> int:
    """Activations of the step by which an engine measures itself, about: of each of its tokens the
    residual, a norm and the widest projection with its product; then of each sequence the logits in
    16 and 32 bits with their softmax."""
    experts = model.moe_router_topk * model.expert_ffn_hidden_size * bool(model.num_moe_experts)
    wide = max(model.ffn_hidden_size, experts) // ranks
    layer = _BATCHED_TOKENS * (3 * wide + 2 * model.hidden_size) * _SIXTEEN_BITS
    logits = _SEQUENCES * model.vocab_size * (_SIXTEEN_BITS + 2 * DType.FP32.itemsize)
    return max(layer, logits)
