"""Who counts as dead: by a lock on the same machine, by a heartbeat that stands still elsewhere."""

from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from harness.sweeps.workers.claims import HeartbeatWatch, SweepWorker, Ticket, ticket_of


def test_on_one_machine_a_lock_tells_at_once(tmp_path: Path) -> None:
    dead, living, asker = (SweepWorker(tmp_path) for _ in range(3))
    watch = HeartbeatWatch(asker, timeout_seconds=60.0)
    dead._lock.close()  # as the kernel does for a process that is killed
    assert watch.is_dead(1, dead.ticket(), None)
    assert not watch.is_dead(2, living.ticket(), None)
    assert not watch.is_dead(3, asker.ticket(), None)
    asker.bury()
    assert len(list((tmp_path / "workers").iterdir())) == 2
    for worker in (living, asker):
        worker.close()
    assert not list(tmp_path.iterdir())


def test_elsewhere_a_heartbeat_that_stands_still_while_the_storage_answers(tmp_path: Path) -> None:
    now = 0.0
    asker = SweepWorker(tmp_path)
    watch = HeartbeatWatch(asker, timeout_seconds=10.0, clock=lambda: now)
    ticket = asker.ticket()
    there = replace(ticket, owner=replace(ticket.owner, worker="other", kernel="another"))

    def is_dead(seconds: float, heartbeat: int, of: Ticket | None = there) -> bool:
        nonlocal now
        now = seconds
        return watch.is_dead(1, of, heartbeat)

    assert not is_dead(0.0, 1)
    assert not is_dead(9.0, 1)
    assert not is_dead(9.5, 2), "it beats"
    assert not is_dead(19.0, 2)
    watch.forget()  # the storage was away: nobody could beat
    assert not is_dead(25.0, 2)
    assert not is_dead(34.0, 2)
    assert is_dead(35.5, 2)
    assert is_dead(35.5, 2, of=None), "what nobody signed is nobody's after the same time"
    asker.close()


def test_a_ticket_is_read_as_it_was_stored(tmp_path: Path) -> None:
    worker = SweepWorker(tmp_path)
    ticket = worker.ticket()
    assert ticket_of({"harness:claim": to_builtins(ticket)}) == ticket
    assert ticket_of({}) is None
    worker.close()
    assert not list(tmp_path.iterdir())
