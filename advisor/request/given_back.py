"""What a request must give to have the job of a search's row as its own."""

from typing import Any

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.job.job import Job
from advisor.request.given import read_given
from advisor.request.harness_line import differing
from advisor.request.layout_fields import DEGREES
from advisor.request.request import Request

_GIVEN = (*DEGREES, "expert_tensor_parallel_size")


def beside_degrees(request: Request, usual: Job) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value: the degrees of the `usual` job, and what has to be given with them,
    as a recipe for another number of GPUs is left behind where degrees are given. Empty where
    nothing makes the job."""
    given = read_given(request)
    degrees = {name: getattr(usual.layout, name) for name in _GIVEN}
    degrees = {name: degree for name, degree in degrees.items() if degree is not None}
    own = replace(given, layout_fields={**degrees, **given.layout_fields})
    try:
        made = differing(usual, own)
    except UserError:
        return {}
    return {
        f"{group}.{name}": value
        for group, fields, asked in (
            ("model", made.model_fields, given.model_fields),
            ("layout", made.layout_fields, given.layout_fields),
            ("job", made.job_fields, given.job_fields),
        )
        for name, value in fields.items()
        if name not in asked
    }
