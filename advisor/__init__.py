"""Which activations should a training job keep, and which should it compute again?

`advise` ranks every legal recompute setting of a job by peak memory and step time, without a GPU
and without torch:

    advice = advisor.advise(model="llama3_70b", gpus="32xH100", tp=4)
    advice.fits, advice.best.recompute.spec, advice.best.flags["megatron_lm"]

Importing this loads nothing: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from advisor.answer.advice import Advice, Candidate
    from advisor.answer.solution import Trial
    from advisor.api.admission import Admission
    from advisor.api.calls import (
        Difference,
        advise,
        check,
        diff,
        diff_schema,
        evaluate,
        json_schema,
        load_gpu,
        load_model,
        read,
    )
    from advisor.api.keywords import JobKeywords
    from advisor.api.solutions import Solution, compare, solution_schema, solve
    from advisor.base.errors import UserError
    from advisor.models.spec import ModelSpec
    from advisor.request.request import Request

    __version__: str

__all__ = [
    "Admission",
    "Advice",
    "Candidate",
    "Difference",
    "JobKeywords",
    "ModelSpec",
    "Request",
    "Solution",
    "Trial",
    "UserError",
    "__version__",
    "advise",
    "check",
    "compare",
    "diff",
    "diff_schema",
    "evaluate",
    "json_schema",
    "load_gpu",
    "load_model",
    "read",
    "solution_schema",
    "solve",
]

_MODULES: Final = {
    **dict.fromkeys(("Advice", "Candidate"), "advisor.answer.advice"),
    "Admission": "advisor.api.admission",
    "JobKeywords": "advisor.api.keywords",
    "ModelSpec": "advisor.models.spec",
    "Request": "advisor.request.request",
    "UserError": "advisor.base.errors",
    "Trial": "advisor.answer.solution",
    **dict.fromkeys(("Solution", "compare", "solution_schema", "solve"), "advisor.api.solutions"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from advisor.base.distribution import installed_version

        return installed_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "advisor.api.calls")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
