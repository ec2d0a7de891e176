"""Who was late for a collective that timed out, from what each rank said of it."""

from collections.abc import Iterable

from advisor.diagnose.scan import Finding


def who_was_late(finding: Finding) -> dict[str, str]:
    """A sentence, and which cases it leaves: other collectives, a barrier of one element, any."""
    said = {r: {n: one.text for n, one in by.items()} for r, by in finding.by_rank.items()}
    sent = {rank: int(one["enqueued"]) for rank, one in said.items() if "enqueued" in one}
    works = {tuple(one.get(name, "") for name in ("seq", "op", "numel")) for one in said.values()}
    seq, op, numel = max(works, default=("", "", ""))
    missing = [rank for rank in range(max(said, default=0)) if rank not in said and len(said) > 1]
    waited = f"{_ranks(said)} waited in {op or 'work'} number {seq}; "
    when, text = "barrier" if numel == "1" else "plain", ""
    if len(set(sent.values())) > 1:
        first, last = min(sent.values()), max(sent.values())
        late = _ranks(rank for rank, number in sent.items() if number == first)
        text = f"{late} was late: the last work it enqueued is {first}, others' {last}."
    elif len(works) > 1 and len({work[0] for work in works}) == 1:
        text, when = f"The ranks ran different collectives as number {seq}.", "differs"
    elif missing:
        text = f"{waited}{_ranks(missing)}, which did not report, came late."
    elif seq:
        text = f"{waited}the late one is one that does not report."
    return {"text": text, "when": when}


def _ranks(ranks: Iterable[int]) -> str:
    return f"Rank {', '.join(map(str, sorted(ranks)[:8]))}"
