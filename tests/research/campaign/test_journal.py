"""The journal survives a crash in the middle of a line."""

from pathlib import Path

from research.campaign.journal import Attempt, Journal, Outcome, standing


def attempt(item: str, outcome: Outcome = Outcome.DONE) -> Attempt:
    return Attempt(item=item, key=f"key of {item}", outcome=outcome, exit_code=0, seconds=1.5)


def test_attempts_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "campaign.jsonl")
    assert journal.attempts() == ()
    written = (attempt("a"), attempt("b", Outcome.UNFINISHED))
    for one in written:
        journal.add(one)
    assert journal.attempts() == written
    assert journal.attempts("key of b") == written[1:]


def test_a_journal_of_before_there_were_versions_is_read(tmp_path: Path) -> None:
    """Its exit code 4 may be a failed trial or one out of memory: it is tried again."""
    path = tmp_path / "campaign.jsonl"
    path.write_text(
        '{"item": "a", "key": "k", "outcome": "done", "exit_code": 0, "seconds": 1.5}\n'
        '{"item": "b", "key": "l", "outcome": "done", "exit_code": 4, "seconds": 1.5}\n'
    )
    done, some_failed = (standing(Journal(path).attempts(key), "now") for key in ("k", "l"))
    assert not done.due
    assert some_failed.due
    assert some_failed.retry
    assert not some_failed.failed


def test_a_line_cut_short_is_no_attempt_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    journal = Journal(path)
    journal.add(attempt("a"))
    whole = path.read_bytes()
    for cut in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        journal.add(attempt("b"))
        assert [one.item for one in journal.attempts()] == ["a", "b"]
