"""From a request to its answer: what the command and the Python call have in common."""

from typing import TYPE_CHECKING, Final

from advisor.base.errors import UserError
from advisor.base.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advisor.answer.answer import Answer
    from advisor.reading.read_configuration import ReadConfiguration
    from advisor.request.request import Request
    from advisor.search.layout_search import Watch

_HIGHEST_PRICE: Final = 1e9


def checked_price(value: float, name: str) -> float:
    """What an hour of one GPU costs, in whatever currency; UserError unless it is positive."""
    if not 0 < value <= _HIGHEST_PRICE:
        raise UserError(name, value, "must be above 0 and at most 10^9", "write e.g. 2.5")
    return value


def check_prices(prices: "Sequence[float]", count: int) -> None:
    """UserError unless there is none, one, or one for each of so many GPUs."""
    if len(prices) not in (0, 1, count):
        relation = f"is {len(prices)} prices of {counted(count, 'type')} of GPUs"
        given = ",".join(f"{price:g}" for price in prices)
        raise UserError("--price-per-gpu-hour", given, relation, "give one for each, or one")


def check_rank(answer: "Answer", rank: int | None, flag: str) -> None:
    """UserError where `flag` names a row that is not there."""
    if rank is not None and max(rank, 1) > len(answer.candidates):
        count = len(answer.candidates)
        there = f"the answer has {counted(count, 'row')}"
        raise UserError(flag, rank, there, f"nearest: {count}" if count else "")


def answer_to(
    request: "Request",
    *,
    explain: int | None = None,
    verify: int | None = None,
    read: "ReadConfiguration | None" = None,
    watch: "Watch | None" = None,
    remedies: bool = True,
) -> "Answer":
    """Every legal setting of the request, ranked; the `verify` best rehearsed by Megatron Core.

    read: what the job was taken from. watch: is called with how far a search is. remedies: whether
    what would help is looked for where nothing fits. Raises UserError where the request is wrong,
    there is no candidate of rank `explain`, or Megatron Core is not installed to verify with.
    """
    from advisor.search.advise import advise

    try:
        answer = advise(request, watch, remedies=remedies)
        check_rank(answer, explain, "--explain")
        if verify:
            from advisor.search.verification import verify as verified

            answer = verified(answer, verify, request.config_dir)
    except UserError as error:
        from advisor.lint.request_from import blamed

        raise blamed(error, read, request) from None
    return answer
