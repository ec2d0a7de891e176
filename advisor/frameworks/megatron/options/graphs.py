"""Options of CUDA graphs."""

from typing import Final

from advisor.frameworks.megatron.options.values import (
    checks_for_nan,
    graph_impl,
    graph_modules,
    graph_modules_of_recipe,
    has_graphs,
    old_graphs,
)
from advisor.frameworks.option import (
    ON_LINE,
    SET_IN_RECIPES,
    Options,
    When,
    checked,
    harmless,
    option,
    unpriced,
)
from advisor.job.job import CudaGraphImpl

_POOL: Final = "one pool for all graphs is modelled"


class CudaGraphs(Options, title="CUDA graphs"):
    """Options of CUDA graphs."""

    cuda_graph_impl: str = option(
        "none", "job", SET_IN_RECIPES, value=graph_impl, strict=True, since="0.15"
    )
    external_cuda_graph: bool = option(
        False,
        "job.cuda_graph_impl",
        SET_IN_RECIPES,
        value=old_graphs(CudaGraphImpl.TRANSFORMER_ENGINE),
        nemo_1="",
    )
    enable_cuda_graph: bool = option(
        False,
        "job.cuda_graph_impl",
        SET_IN_RECIPES,
        value=old_graphs(CudaGraphImpl.LOCAL),
        nemo_1="",
    )
    cuda_graph_modules: tuple[str, ...] = option(
        (),
        "job",
        config="full",
        value=graph_modules,
        strict=True,
        since="0.12",
        was="cuda_graph_scope",
        renamed="0.18",
        line=When(only_if=has_graphs),
        recipe=When(always=True, only_if=has_graphs),
        recipe_value=graph_modules_of_recipe,
        nemo_1="",
    )
    check_for_nan_in_loss_and_grad: bool = option(
        True, "job.cuda_graph_impl", ON_LINE, value=checks_for_nan, bridge=""
    )
    cuda_graph_warmup_steps: int = checked(3, "warm-up steps before the capture are not modelled")
    cuda_graph_use_single_mempool: bool = unpriced(True, _POOL, flag="", older={"0.17": False})
    cuda_graph_retain_backward_graph: bool = unpriced(
        False, "retained backward graphs are not modelled", flag=""
    )
    inference_cuda_graph_scope: str | None = harmless(None, "used only for inference", since="0.18")
