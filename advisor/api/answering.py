"""From a request to its answer: what the command and the Python call have in common."""

from typing import TYPE_CHECKING

from advisor.base.errors import UserError

if TYPE_CHECKING:
    from advisor.answer.answer import Answer
    from advisor.request.request import Request


def answer_to(
    request: "Request", *, explain: int | None = None, verify: int | None = None
) -> "Answer":
    """Every legal setting of the request, ranked; the `verify` best rehearsed by Megatron Core.

    Raises UserError where the request is wrong, there is no candidate of rank `explain`, or
    Megatron Core is not installed to verify with.
    """
    from advisor.search.advise import advise

    answer = advise(request)
    if explain and explain > len(answer.candidates):
        count = len(answer.candidates)
        there = "there is 1 row" if count == 1 else f"there are {count} rows"
        raise UserError("--explain", explain, there, f"nearest: {count}" if count else "")
    if verify:
        from advisor.search.verification import verify as verified

        answer = verified(answer, verify, request.config_dir)
    return answer
