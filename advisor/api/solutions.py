"""`advisor.solve` and `advisor.compare`: many requests answered, as one table."""

from collections.abc import Sequence
from typing import Any, Unpack

from advisor.answer.solution import Solution
from advisor.api.answering import check_prices, checked_price
from advisor.api.keywords import RequestKeywords, request_of
from advisor.base.errors import UserError
from advisor.base.fields import convert
from advisor.base.json_schema import json_schema
from advisor.models.presets import ModelSource
from advisor.report.solution_page import plain_solution
from advisor.request.request import Quantity
from advisor.search import inverse


def solve(
    quantity: str,
    *,
    model: ModelSource,
    gpus: str,
    price_per_gpu_hour: float | None = None,
    **keywords: Unpack[RequestKeywords],
) -> Solution:
    """The hardest value with which a job fits: ``solve("seq_length", model=…, gpus=…)``.

    Args:
        quantity: ``seq_length`` (the longest, tokens), ``micro_batch_size`` or
            ``global_batch_size`` (the largest, sequences), ``gpus`` (the fewest), ``memory`` (the
            least of each GPU, bytes).
        model, gpus, price_per_gpu_hour, keywords: as for `advise`; of the fewest GPUs the type
            alone is enough. ``certainty=0.95``: how likely it has to fit.

    Raises UserError where the request is wrong. `Solution.best` is None where nothing fits.
    """
    wanted: Quantity = convert(quantity, Quantity, "", "quantity")
    request = request_of(model, gpus, keywords)
    prices = [] if price_per_gpu_hour is None else [_price(price_per_gpu_hour)]
    return plain_solution(inverse.solve(request, wanted), request, prices)


def compare(
    gpus: Sequence[str],
    *,
    model: ModelSource,
    price_per_gpu_hour: float | Sequence[float] | None = None,
    **keywords: Unpack[RequestKeywords],
) -> Solution:
    """One job on several GPUs: ``compare(["32xH100", "16xB200"], model=…)``. `Solution.best` is the
    fastest that fits. price_per_gpu_hour: one price, or one for each; the rest as for `advise`."""
    if isinstance(gpus, str) or not gpus:
        raise UserError("gpus", gpus, "is not a list", 'write e.g. gpus=["32xH100", "16xB200"]')
    given: Any = price_per_gpu_hour
    several = [] if given is None else given if isinstance(given, list | tuple) else [given]
    prices = [_price(one) for one in several]
    check_prices(prices, len(gpus))
    request = request_of(model, gpus[0], keywords)
    return plain_solution(inverse.compare(request, list(gpus)), request, prices)


def _price(value: object) -> float:
    name = "price_per_gpu_hour"
    return checked_price(convert(value, float, "", name), name)


def solution_schema() -> dict[str, Any]:
    """The JSON Schema of `Solution.to_json`; the same text is shipped as
    advisor/api/solution.schema.json."""
    return json_schema(Solution, title="advise --solve --format json, schema_version 1")
