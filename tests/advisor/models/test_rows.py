"""Rows of models and their families: all of them are used, and their code is there."""

from typing import Any

import pytest

from advisor.base.errors import UserError
from advisor.base.rule import rows_of
from advisor.models import checks
from advisor.models.config_json import importer
from advisor.models.config_json.families import FILE, family_of
from advisor.models.model_fields import ModelFields


def _rows(file: str, *tables: str) -> list[dict[str, Any]]:
    return [row for table in tables for row in rows_of(file)[table].values()]


def test_every_part_of_a_family_is_used() -> None:
    rows = _rows("model_families.json", "parts", "types", "towers")
    used = {name for row in rows for name in row.get("like", ())}
    read_by_code = {"gemma4_experts", "nemotron_experts"}
    assert used | read_by_code == set(FILE.parts)


def test_every_code_of_a_family_is_there_and_used() -> None:
    codes = {code for name in FILE.types for code in family_of(name).code}
    assert codes == set(importer._CODE)


@pytest.mark.parametrize("name", FILE.types)
def test_a_family_names_fields_of_a_model(name: str) -> None:
    assert set(family_of(name).fields) <= set(ModelFields.__struct_fields__)


def test_every_condition_of_a_rule_is_used() -> None:
    rows = [row for table in rows_of("models.json")["tables"].values() for row in table]
    assert {row["code"] for row in rows if "code" in row} == set(checks._CODE)
    assert {name for row in rows for name in row["names"].split()} <= set(
        ModelFields.__struct_fields__
    )


def test_a_bound_is_said_with_its_number() -> None:
    fields = dict.fromkeys(("hidden_size", "ffn_hidden_size", "num_attention_heads"), 1)
    fields |= {"num_query_groups": 1, "kv_channels": 1, "vocab_size": 1}
    model = ModelFields(name="m", num_layers=1001, max_position_embeddings=1, **fields)
    with pytest.raises(UserError, match="num_layers = 1001: must be at most 1000"):
        checks.check_model(model)
