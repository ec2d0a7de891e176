"""The Python that runs a plan of blocks: block_checkpoints.py with the plan in it."""

from itertools import groupby
from pathlib import Path
from re import sub
from typing import Final

from advisor.frameworks.torch.block_regimes import INPUT, BlockRegime, decisions
from advisor.frameworks.torch.plan import stops_early
from advisor.frameworks.torch.setting import TorchSetting
from advisor.layers.operators import Operator
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer

_TEMPLATE: Final = Path(__file__).with_name("block_checkpoints.py")
_NO_PLAN: Final = "BLOCKS: Sequence[Way | None] = ()\n"
_RNG: Final = "PRESERVE_RNG_STATE = True\n"


def plan_file(setting: TorchSetting, shape: RankShape, hook: str = "") -> str:
    """A module with apply_plan and the regimes of all blocks; after it `hook`, which has a
    framework call it."""
    model, kinds = shape.model, shape.model.layer_kinds
    ways = [
        _way(regime, transformer_layer(shape, kind), early_stop=stops_early(kind))
        for regime, kind in zip(setting.blocks, kinds, strict=True)
    ]
    lines = [f'SPEC = "{setting.spec}"', "BLOCKS: Sequence[Way | None] = ("]
    for way, alike in groupby(ways):
        lines.append(f"    *[{way}] * {sum(1 for _ in alike)},")
    text = sub("  # type: ignore.*", "", _TEMPLATE.read_text(encoding="utf-8"))
    assert all(text.count(line) == 1 for line in (_NO_PLAN, _RNG))
    text = text.replace(_NO_PLAN, "\n".join([*lines, ")", ""]))
    if not (model.hidden_dropout or model.attention_dropout):
        text = text.replace(_RNG, "PRESERVE_RNG_STATE = False  # nothing is random in a block\n")
    return text + hook


def _way(regime: BlockRegime, operators: tuple[Operator, ...], *, early_stop: bool) -> str:
    """The regime as the module's code has it."""
    if not regime.checkpointed:
        return "None"
    known = decisions(operators)

    def named(names: tuple[str, ...]) -> str:
        found = sorted(known[name] for name in names if name != INPUT)
        return f"frozenset([{', '.join(map(repr, found))}])"

    parts = {
        f"keep={named(regime.kept)}": regime.kept,
        f"host={named(regime.on_host)}": set(regime.on_host) - {INPUT},
        "input_on_host=True": INPUT in regime.on_host,
        "early_stop=False": not early_stop,
    }
    return f"Way({', '.join(part for part, holds in parts.items() if holds)})"
