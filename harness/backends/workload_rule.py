"""A rule on a workload: what a backend does not run."""

from collections.abc import Mapping
from typing import ClassVar, Self

from advisor.base.rule import Rule
from harness.trial.trial import Workload


class WorkloadRule(Rule[[Workload]], frozen=True, kw_only=True):
    """A rule on a workload."""

    names: ClassVar[tuple[str, ...]] = ("workload",)

    @classmethod
    def unlike(cls, field: str, legal: tuple[object, ...], reason: str, fix: str = "") -> Self:
        """A field that may be `legal` alone."""
        return cls.on(field, lambda w: value_of(w, field) not in legal, reason, fix)

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """See value_of."""
        workload = values["workload"]
        assert isinstance(workload, Workload)
        return value_of(workload, field)


def value_of(workload: Workload, field: str) -> object:
    """Of ``model.…``, ``layout.…``, ``job.…``, or of the recompute setting."""
    group, _, name = field.removeprefix("--").rpartition(".")
    return getattr({"model": workload.model, "layout": workload.layout}.get(group, workload), name)
