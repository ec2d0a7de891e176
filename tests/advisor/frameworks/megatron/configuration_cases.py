"""Settings for TransformerConfig: every rule fires in some, and many are legal."""

import csv
import json
import re
from pathlib import Path
from typing import Any

from advisor.base.rule import Finding, Verdict
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.engine import RULES, find
from advisor.frameworks.megatron.rules.stated import Authority

BASE: dict[str, Any] = {
    "num_layers": 8,
    "num_attention_heads": 8,
    "num_query_groups": 8,
    "add_bias_linear": False,
    "moe_token_dispatcher_type": "alltoall",
}
"""A small model, in which each of the cases stands."""
TE = "transformer_engine"


def recorded(name: str) -> tuple[dict[str, Any], ...]:
    """The settings of each line of a file in data/."""
    lines = (Path(__file__).parent / "data" / f"{name}.jsonl").read_text().splitlines()
    return tuple(
        {key: tuple(value) if isinstance(value, list) else value for key, value in case.items()}
        for case in map(json.loads, lines)
    )


CASES = recorded("configuration_cases")


def _raised() -> list[dict[str, str]]:
    with (Path(__file__).parent / "data" / "raises.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


RAISED = _raised()


def first_refusal(raw: RawSettings, revision: Revision) -> Finding | None:
    """What constructing TransformerConfig raises on `raw`; None where it accepts it."""
    refused = (one for one in find(raw, revision) if one.verdict is Verdict.REFUSED)
    return next((one for one in refused if RULES[one.rule].authority is Authority.CONFIG), None)


def claims(refusal: Finding | None) -> tuple[str, ...]:
    """``ok``, or the exceptions with the start of their message by which Megatron may refuse; * is
    a value."""
    if refusal is None:
        return ("ok",)
    own = [row for row in RAISED if row["rule"] == refusal.rule and row["reason"] in refusal.reason]
    return tuple(row["raises"] for row in own)


def begins_like(real: str, claimed: tuple[str, ...]) -> bool:
    """Whether what happened starts as one of the claims does."""
    patterns = (re.escape(claim).replace(r"\*", ".*") for claim in claimed)
    return any(re.match(pattern, real) for pattern in patterns)
