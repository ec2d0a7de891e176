"""Settings as the user wrote them, legal or not: what Megatron's configuration sees.

Every rule is stated on this type. A ranked setting with its job is lowered into it; `advise lint`
fills it from flags or YAML. None means: not given, or (for the model's shape) not known.
"""

import re
from typing import Any, Self

from msgspec import Struct

from advisor.frameworks.megatron.options.table import AllOptions
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.setting import Granularity


class RawSettings(AllOptions):
    """Every option under its own name and with its own default (megatron-core 0.19.2): the rows of
    options/. An instance holds what it is given; the rest are defaults of the class."""

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - self.option_names
        if unknown:
            raise TypeError(f"{', '.join(sorted(unknown))}: no option of Megatron")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: cannot be set; use changed(), which returns new settings")

    def __repr__(self) -> str:
        return f"RawSettings({', '.join(f'{k}={v!r}' for k, v in self.given.items())})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RawSettings):
            return NotImplemented
        names = self.given.keys() | other.given.keys()
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def changed(self, **values: Any) -> Self:
        """The same settings except `values`."""
        return type(self)(**{**self.__dict__, **values})

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by name."""
        return dict(self.__dict__)

    @property
    def selective(self) -> bool:
        """Whether recompute_modules is read at all."""
        return self.recompute_granularity == Granularity.SELECTIVE

    @property
    def full(self) -> bool:
        """Whether whole layers are recomputed."""
        return self.recompute_granularity == Granularity.FULL

    @property
    def effective_modules(self) -> tuple[str, ...]:
        """Modules after Megatron's promotion of None to core_attn, whatever the granularity."""
        return ("core_attn",) if self.recompute_modules is None else self.recompute_modules

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """What selective recompute acts on after both of Megatron's promotions: an unset list is
        core_attn, and moe_layer_recompute makes it selective and appends moe."""
        if self.full or not (self.selective or self.moe_layer_recompute):
            return ()
        added = self.moe_layer_recompute and "moe" not in self.effective_modules
        return (*self.effective_modules, "moe") if added else self.effective_modules

    @property
    def delayed_scaling(self) -> bool:
        """Whether fp8 runs with per-tensor delayed scaling, the recipe of an unset fp8_recipe."""
        return bool(self.fp8) and self.fp8_recipe in (None, "delayed")

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return (self.num_moe_experts or 0) > 1

    @property
    def has_dense_mlp(self) -> bool:
        """Whether any layer has a dense MLP: a moe_layer_freq other than 1, or a 0 in its list."""
        pattern = self.moe_layer_freq
        every = pattern.strip() == "1" or (
            not pattern.strip().isdigit() and not re.search(r"\b0\b", pattern)
        )
        return not (self.has_experts and every)

    @property
    def layers_per_chunk(self) -> int | None:
        """Layers of a model chunk: num_layers / PP / VPP; None where unknown or uneven."""
        chunks = self.pipeline_model_parallel_size * (
            self.virtual_pipeline_model_parallel_size or 1
        )
        if self.num_layers is None or chunks < 1 or self.num_layers % chunks:
            return None
        if self.pipeline_model_parallel_layout:
            return None
        return self.num_layers // chunks


class Graphs(Struct, frozen=True):
    """CUDA graphs after Megatron's own normalisation of old spellings."""

    impl: str
    modules: tuple[str, ...]

    @property
    def on(self) -> bool:
        """Whether anything is captured."""
        return self.impl != "none"

    @property
    def iteration(self) -> bool:
        """Whether one graph holds the whole iteration."""
        return self.impl == "full_iteration" or (
            self.impl == "local" and self.modules == ("full_iteration",)
        )

    def captures(self, module: str) -> bool:
        """Whether `module` of a layer runs inside a graph; no modules means the whole layer."""
        everything = self.iteration or not self.modules or "full_iteration" in self.modules
        return self.on and (everything or module in self.modules)


def graphs_of(raw: RawSettings, revision: Revision) -> Graphs:
    """Resolve enable_cuda_graph, external_cuda_graph, "full" and "full_iteration".

    Source: megatron-core 0.19.2 transformer_config.py:2365-2444, cuda_graph_config.py.
    """
    impl, modules = raw.cuda_graph_impl, raw.cuda_graph_modules
    if raw.enable_cuda_graph:
        impl = "local"
    elif raw.external_cuda_graph:
        impl = "transformer_engine"
    if modules == ("full",):
        modules = ()
    if "full_iteration" in modules and revision.at_least(0, 18) and impl != "transformer_engine":
        impl = "full_iteration"
        modules = tuple(module for module in modules if module != "full_iteration")
    return Graphs(impl, modules)
