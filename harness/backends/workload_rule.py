"""A rule on a workload: what a backend does not run."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self

from advisor.base.record import defaults
from advisor.base.rule import Rule, rows_of
from advisor.models.model_fields import ModelFields
from advisor.models.variants import PLAIN
from harness.trial.trial import Workload

Conditions = Mapping[str, Callable[[Workload], object]]
_DEFAULTS: Final = defaults(ModelFields)


class WorkloadRule(Rule[[Workload]], frozen=True, kw_only=True):
    """A rule on a workload."""

    names: ClassVar[tuple[str, ...]] = ("workload",)

    @classmethod
    def of(cls, field: str, row: Mapping[str, Any], conditions: Conditions) -> Self:
        """The rule of a row about one of its fields, see `backend_rules`."""
        legal = row.get("legal", [_DEFAULTS.get(field.removeprefix("model."))])
        when = conditions[row["when"]] if "when" in row else None
        given = conditions[row["given"]] if "given" in row else None
        when = when or (lambda w: value_of(w, field) not in legal)
        return cls.on(field, when, row["reason"], row.get("fix", ""), given=given)

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """See value_of."""
        workload = values["workload"]
        assert isinstance(workload, Workload)
        return value_of(workload, field)


def backend_rules(table: str, conditions: Conditions) -> tuple[WorkloadRule, ...]:
    """A table of configs/rules/backends.json. A row refuses its `field`, or each of its `fields`
    (``variants``: all by which a model is no plain transformer), where it is not `legal` (of
    a model, its default) or where `when` holds, if `given` does: both are names in `conditions`."""
    variants = [f"model.{name}" for name, _ in PLAIN]
    rows = ((row, row.get("fields") or [row["field"]]) for row in rows_of("backends.json")[table])
    return tuple(
        WorkloadRule.of(field, row, conditions)
        for row, fields in rows
        for field in (variants if fields == "variants" else fields)
    )


def value_of(workload: Workload, field: str) -> object:
    """Of ``model.…``, ``layout.…``, ``job.…``, or of the recompute setting."""
    group, _, name = field.removeprefix("--").rpartition(".")
    return getattr({"model": workload.model, "layout": workload.layout}.get(group, workload), name)
