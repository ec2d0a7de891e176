"""Our verdict against what the real TransformerConfig of ten releases did with each setting.

The table's header names its source. The message that a rule claims must be how the real one starts.
"""

import csv
from pathlib import Path
from typing import Any

import pytest

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from tests.advisor.frameworks.megatron.configuration_cases import (
    begins_like,
    claims,
    first_refusal,
    recorded,
)

TABLE = Path(__file__).parent / "data" / "transformer_config_probes.csv"
BASE: dict[str, Any] = {"num_layers": 8, "num_attention_heads": 8, "num_query_groups": 8}
MEGATRON = Framework.MEGATRON_LM
SETTINGS = {case.pop("probe"): case for case in recorded("probe_settings")}


def _rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


ROWS = {row.pop("probe"): row for row in _rows()}
_, *VERSIONS = ROWS["sel_unset"]


def test_every_row_has_settings_and_every_settings_a_row() -> None:
    assert ROWS.keys() == SETTINGS.keys()


def _is_same(real: str, settings: dict[str, Any], version: str) -> bool:
    raw, revision = RawSettings(**BASE | settings), resolve_revision(MEGATRON, version)
    refusal = first_refusal(raw, revision)
    if refusal is not None and refusal.rule == "unknown_field":
        return real.startswith("no such field")
    exception, _, message = real.partition(": ")
    return begins_like(": ".join((exception.split()[0], message)), claims(refusal))


@pytest.mark.parametrize("version", VERSIONS)
def test_same_verdict_as_the_real_configuration(version: str) -> None:
    real = {probe: row[version] for probe, row in ROWS.items()}
    assert {p: one for p, one in real.items() if not _is_same(one, SETTINGS[p], version)} == {}


def test_the_promotion_is_the_one_the_real_configuration_made() -> None:
    for version in VERSIONS[1:]:
        promoted = ", ".join(f"'{m}'" for m in RawSettings().effective_modules)
        assert ROWS["sel_unset"][version] == f"ok modules=[{promoted}] gran=selective"
        layer = RawSettings(moe_layer_recompute=True).recomputed_modules
        modules = ", ".join(f"'{m}'" for m in layer)
        assert ROWS["moe_layer_recompute"][version] == f"ok modules=[{modules}] gran=selective"
