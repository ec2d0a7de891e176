"""Settings for TransformerConfig: every rule fires in some, and many are legal."""

import json
from pathlib import Path
from typing import Any

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
