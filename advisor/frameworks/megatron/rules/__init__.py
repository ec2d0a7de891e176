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
from advisor.frameworks.megatron.rules.rule import Authority, Finding, Rule, Verdict

__all__ = [
    "RULES",
    "Authority",
    "Finding",
    "Rule",
    "Verdict",
    "check",
    "find",
    "first_refusal",
    "notes",
    "remarks",
    "rules_in_force",
    "without_effect",
]
