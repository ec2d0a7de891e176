"""STUB until sweep_policy's."""
import math
METRICS = ("step time, s", "peak memory, GiB")
def values(outcome):
    if not outcome.measured:
        return [math.inf, math.inf]
    return [outcome.step_seconds, outcome.peak_bytes / 2**30]
def constraints(outcome, budget):
    over = 0.0
    if budget is not None and outcome.peak_bytes is not None:
        over = outcome.peak_bytes / budget - 1.0
    return {"memory_over_budget": over, "does_not_run": 0.0 if outcome.measured else 1.0}
def attributes(task, expected, outcome=None):
    found = {"repeat": task.repeat, "rank": expected.rank}
    if outcome is not None:
        found |= {"status": str(outcome.status), "result": outcome.name}
    return found
