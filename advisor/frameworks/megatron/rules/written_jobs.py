"""What a job that somebody wrote may break, and one that is ranked cannot: it is refused before.

The rules are rows of configs/rules/megatron_jobs.json. A row applies where all of `given` hold; the
first of its `numbers` must then be a multiple of the product of the others, or in another
`relation` to it; {divisor} is the most that the second may then be. Its reason shows `values`, by
default the options of its example.
"""

import re
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

from advisor.base.rule import Match, rows_of, rules_of
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.stated import Authority, Rule, fields, holds
from advisor.job.pipeline_split import chunk_texts

_RELATIONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "multiple": lambda number, of: not (number % of if of else number),
    "multiple or less": lambda number, of: number < of or not number % (of or 1),
    "at least": lambda number, least: number >= least,
    "at most": lambda number, most: number <= most,
    "equal": lambda number, other: number == other,
}


def _broken(row: dict[str, Any], raw: RawSettings, revision: Revision) -> Match | None:
    fix = row["fix"]
    if not all(holds(side)(raw, revision) for side in row.get("given", ())):
        return None
    if "numbers" in row:
        found = [_number(raw, name) for name in row["numbers"]]
        number, *parts = (one or 0 for one in found)
        if None in found or _RELATIONS[row["relation"]](number, prod(parts)):
            return None
        if "{divisor}" in fix:
            some = (d for d in range(parts[0], 0, -1) if not number % (d * prod(parts[1:]) or 1))
            divisor = next(some, None)
            fix = fix.replace("{divisor}", str(divisor)) if divisor else fix.partition(", or ")[2]
        fix = fix.replace("{number}", str(number)).replace("{found}", str(prod(parts)))
    names = row.get("values", re.findall(r"(\w+)=", row["example"]))
    shown = ", ".join(f"{name} = {raw.given[name]}" for name in names if raw.given.get(name))
    return Match(f"{row['says']}: {shown}".removesuffix(": "), fix)


def _ends(raw: RawSettings) -> list[int]:
    """Layers of the first and the last stage, where they have their own number."""
    both = (raw.num_layers_in_first_pipeline_stage, raw.num_layers_in_last_pipeline_stage)
    return [number for number in both if number is not None]


def _layers(raw: RawSettings) -> int | None:
    """Those that are split evenly."""
    if raw.num_layers is None or raw.pipeline_model_parallel_layout or raw.hybrid_layer_pattern:
        return None
    beside = raw.account_for_embedding_in_pipeline_split + raw.account_for_loss_in_pipeline_split
    return raw.num_layers + (-sum(_ends(raw)) if _ends(raw) else beside)


def _layout(raw: RawSettings, letter: str) -> int | None:
    """How often the layout has a letter, with a | before each stage."""
    text = raw.pipeline_model_parallel_layout or ""
    plain = re.fullmatch(r"[EtmL|()*\d,]+", text)
    return f"|{'|'.join(chunk_texts(text))}".count(letter) if plain else None


def _over(number: int | None, by: int) -> int | None:
    return None if number is None or by < 1 or number % by else number // by


def _replicas(raw: RawSettings) -> int | None:
    """Data-parallel ranks; one at least where the number of GPUs is not known."""
    ranks = raw.tensor_model_parallel_size * raw.pipeline_model_parallel_size
    return _over(raw.world_size, ranks * raw.context_parallel_size) if raw.world_size else 1


_NUMBERS: Final[dict[str, Callable[[RawSettings], int | None]]] = {
    "layers": _layers,
    "stages": lambda raw: (
        (raw.pipeline_model_parallel_size - len(_ends(raw)))
        * (raw.virtual_pipeline_model_parallel_size or 1)
    ),
    "layers_of_stage": lambda raw: _over(_layers(raw), raw.pipeline_model_parallel_size),
    "stages_of_layout": lambda raw: _layout(raw, "|"),
    "layers_of_layout": lambda raw: _layout(raw, "t"),
    "replicas": _replicas,
}
"""Numbers that follow from options; None where one of these is not known."""


def _number(raw: RawSettings, name: str) -> int | None:
    found = _NUMBERS[name](raw) if name in _NUMBERS else getattr(raw, name, name)
    return found if found is None else int(found)


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a rule takes it; its condition says the rest."""
    names = ("source", "verdict", "authority", "example")
    own = {name: row[name] for name in names if name in row}
    return fields({"summary": f"{row['says']}.", "authority": Authority.TRAINING} | own)


_ROWS: Final[dict[str, Any]] = {
    name: {"relation": "multiple"} | row for name, row in rows_of("megatron_jobs.json").items()
}
RULES: Final = rules_of(
    Rule, _ROWS, {name: partial(_broken, row) for name, row in _ROWS.items()}, _read
)
