"""Options of CUDA graphs."""

from typing import Final

from msgspec.structs import replace

from advisor.frameworks.megatron.options import values
from advisor.frameworks.option import (
    ON_LINE,
    SET_IN_RECIPES,
    Options,
    checked,
    harmless,
    option,
    unpriced,
)
from advisor.job.job import CudaGraphImpl

_OLD: Final = replace(SET_IN_RECIPES, nemo_1="")
_POOL: Final = "one pool for all graphs is modelled"


class CudaGraphs(Options, title="CUDA graphs"):
    """Options of CUDA graphs."""

    cuda_graph_impl: str = option(
        "none", "job", SET_IN_RECIPES, value=values.graph_impl, strict=True, since="0.15"
    )
    external_cuda_graph: bool = option(
        False,
        "job.cuda_graph_impl",
        _OLD,
        value=values.old_graphs(CudaGraphImpl.TRANSFORMER_ENGINE),
    )
    enable_cuda_graph: bool = option(
        False, "job.cuda_graph_impl", _OLD, value=values.old_graphs(CudaGraphImpl.LOCAL)
    )
    cuda_graph_modules: tuple[str, ...] = option(
        (),
        "job",
        values.emitted_where(values.has_graphs, nemo_1=""),
        config="full",
        value=values.graph_modules,
        strict=True,
        since="0.12",
        was="cuda_graph_scope",
        renamed="0.18",
        recipe_value=values.graph_modules_of_recipe,
    )
    check_for_nan_in_loss_and_grad: bool = option(
        True, "job.cuda_graph_impl", ON_LINE, value=values.checks_for_nan, bridge=""
    )
    cuda_graph_warmup_steps: int = checked(3, "warm-up steps before the capture are not modelled")
    cuda_graph_use_single_mempool: bool = unpriced(True, _POOL, flag="", older={"0.17": False})
    cuda_graph_retain_backward_graph: bool = unpriced(
        False, "retained backward graphs are not modelled", flag=""
    )
    inference_cuda_graph_scope: str | None = harmless(None, "used only for inference", since="0.18")
