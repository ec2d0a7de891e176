"""`rl.KEY`: the phases of reinforcement learning, and of preference tuning, on one set of GPUs."""

from enum import StrEnum
from typing import ClassVar, Final

from msgspec import Struct

from advisor.base.rule import Rule, refusals, refuse


class Algorithm(StrEnum):
    """What a step computes: supervised tuning alone, pairs with a reference (DPO), policy and
    reference (GRPO and its kin without a critic), or with a critic as well (PPO)."""

    SFT = "sft"
    DPO = "dpo"
    GRPO = "grpo"
    PPO = "ppo"

    @classmethod
    def _missing_(cls, value: object) -> "Algorithm | None":
        """GRPO for its kin, which differ from it in the loss alone."""
        return cls.GRPO if value in _KIN else None

    @property
    def rolls_out(self) -> bool:
        """Whether a cycle generates samples."""
        return self in (Algorithm.GRPO, Algorithm.PPO)


_KIN: Final = ("cispo", "dapo", "dr_grpo", "gspo", "reinforce", "reinforce_plus_plus", "rloo")


class Engine(StrEnum):
    """What generates samples; none: nothing does, or the model itself (transformers' generate)."""

    NONE = "none"
    VLLM = "vllm"
    SGLANG = "sglang"


class Reference(StrEnum):
    """Where the weights of the reference model are while they are not used: there is none, they are
    the model's own with the adapter switched off, on the host, or on the GPU."""

    NONE = "none"
    ADAPTER_OFF = "adapter_off"
    HOST = "host"
    GPU = "gpu"


class Reinforcement(Struct, frozen=True, kw_only=True):
    """What a cycle has beyond the training step.

    Attributes:
        algorithm: see Algorithm. Under DPO a micro batch and a global batch count pairs of
            sequences.
        engine: of the rollouts; colocated: on the GPUs of the training.
        engine_tensor_parallel_size: GPUs of one engine.
        gpu_memory_utilization: part of the GPU's memory that an engine takes while it is awake.
        sleep_level: of the engine while the model is trained: 0 awake, 1 its weights wait on the
            host, 2 they are dropped; either level frees the KV cache.
        reference: see Reference. critic_on_gpu: whether a critic's weights and states stay there.
        offload_params, offload_gradients, offload_optimizer: whether the trained model's wait on
            the host in other phases; gradients are of no use there, and are freed.
        log_prob_micro_batch_size, log_prob_token_budget: of the forward-only phases; None: as in
            training.
        critic_micro_batch_size, critic_token_budget: of the critic; None: as in training.
        weight_sync_bucket_bytes: of one bucket of the weights' copy to the engine.
        prompt_length, response_length: most tokens of either; None: of seq_length.
        num_generations: responses to one prompt.
    """

    algorithm: Algorithm = Algorithm.SFT
    engine: Engine = Engine.NONE
    colocated: bool = True
    engine_tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    sleep_level: int = 0
    reference: Reference = Reference.NONE
    critic_on_gpu: bool = True
    offload_params: bool = False
    offload_gradients: bool = False
    offload_optimizer: bool = False
    log_prob_micro_batch_size: int | None = None
    log_prob_token_budget: int | None = None
    critic_micro_batch_size: int | None = None
    critic_token_budget: int | None = None
    weight_sync_bucket_bytes: int | None = None
    prompt_length: int | None = None
    response_length: int | None = None
    num_generations: int = 1

    @property
    def has_phases(self) -> bool:
        """Whether a step is more than its update."""
        return self.algorithm is not Algorithm.SFT

    @property
    def shares_gpus(self) -> bool:
        """Whether an engine is on the GPUs of the training."""
        return self.engine is not Engine.NONE and self.colocated

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sample; None where nothing is said of responses."""
        whole = (self.prompt_length or 0) + (self.response_length or 0)
        return whole if self.response_length else None

    @property
    def sequences(self) -> int:
        """Sequences that one of a batch stands for: a pair is two."""
        return 2 if self.algorithm is Algorithm.DPO else 1

    def __post_init__(self) -> None:
        refuse(_RULES.values(), self)


class _PhaseRule(Rule[[Reinforcement]], frozen=True, kw_only=True):
    """A rule on the phases."""

    names: ClassVar[tuple[str, ...]] = ("rl",)


_RULES: Final = refusals(_PhaseRule, "rl")
