"""Which settings Megatron refuses, breaks on, ignores or means differently, and why."""

from advisor.frameworks.megatron.rules.engine import (
    RULES,
    check,
    find,
    first_refusal,
    notes,
    remarks,
    rules_in_force,
    without_effect,
)
from advisor.frameworks.megatron.rules.stated import Authority, Rule

__all__ = [
    "RULES",
    "Authority",
    "Rule",
    "check",
    "find",
    "first_refusal",
    "notes",
    "remarks",
    "rules_in_force",
    "without_effect",
]
