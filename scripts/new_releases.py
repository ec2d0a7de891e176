"""What a new release has that nothing here knows: options, recompute labels, texts of its checks.

    python -m scripts.new_releases megatron_core-0.20.0.whl --after megatron_core-0.19.2.whl

Reads the Python of a wheel, or of its folder, of megatron-core, Megatron Bridge or torchtitan, and
imports none of it. A line for each: fields of dataclasses and flags without a row in our options,
names among labels that no release accepts, raises and asserts that no rule stands for. `--after`
leaves out what an older release has as well.
"""

import argparse
import ast
import csv
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from advisor.frameworks.megatron.options.table import SETTINGS, option_of_flag
from advisor.frameworks.megatron.revisions import MEGATRON_CORE, known_recompute_modules
from advisor.frameworks.megatron.rules.engine import RULES
from advisor.frameworks.megatron.rules.stated import Lines
from advisor.frameworks.torchtitan.options import OPTIONS as TORCHTITAN

FILES = (
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/model_parallel_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "megatron/core/distributed/distributed_data_parallel_config.py",
    "megatron/training/arguments.py",
    "megatron/bridge/training/config.py",
    "megatron/bridge/training/comm_overlap.py",
    "megatron/bridge/training/mixed_precision.py",
    "torchtitan/config/configs.py",
    "torchtitan/distributed/activation_checkpoint.py",
)
RAISES = Path(__file__).parents[1] / "tests/advisor/frameworks/megatron/data/raises.csv"


class Found(NamedTuple):
    """An option, a label or a check of a release; name: its own, or the check's text."""

    kind: str
    place: str
    name: str


def _files(path: Path) -> dict[str, str]:
    """Texts of those of FILES that a wheel or a folder has."""
    root = path if path.is_dir() else zipfile.Path(path)
    found = {name: root.joinpath(name) for name in FILES}
    return {
        name: file.read_text(encoding="utf-8") for name, file in found.items() if file.is_file()
    }


def what_it_has(path: Path) -> Iterator[Found]:
    """Everything of the three kinds in a release."""
    for file, text in _files(path).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                yield from _fields(file, node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument"):
                flags = [_text(word) for word in node.args]
                yield from (Found("option", file, one) for one in flags[:1] if one[:2] == "--")
            elif isinstance(node, ast.Set | ast.List | ast.Tuple):
                yield from _labels(file, node)
            elif isinstance(node, ast.Raise | ast.Assert) and (said := _said(node)):
                yield Found("check", f"{file}:{node.lineno}", said)


def _fields(file: str, node: ast.ClassDef) -> Iterator[Found]:
    is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    for line in node.body if is_dataclass else ():
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation):
            yield Found("option", f"{file} {node.name}", ast.unparse(line.target))


def _labels(file: str, node: ast.Set | ast.List | ast.Tuple) -> Iterator[Found]:
    """Names in a collection most of which are labels that we know."""
    names = {_text(item) for item in node.elts} - {""}
    if len(names & _LABELS) > 3:
        yield from (Found("label", f"{file}:{node.lineno}", name) for name in sorted(names))


def _text(node: ast.AST | None) -> str:
    """A literal text, its values as `*`; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "*" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return ""


def _said(node: ast.Raise | ast.Assert) -> str:
    made = node.msg if isinstance(node, ast.Assert) else node.exc
    message = made.args[0] if isinstance(made, ast.Call) and made.args else made
    return " ".join(_text(message).split())


_LABELS = frozenset(known_recompute_modules()).union(
    *((core.offload_modules + core.cuda_graph_modules) for core in MEGATRON_CORE)
)


def _known_texts() -> list[re.Pattern[str]]:
    lines = (line for line in RAISES.read_text().splitlines() if not line.startswith("#"))
    starts = (row["raises"].partition(": ")[2] for row in csv.DictReader(lines))
    return [re.compile(re.escape(start).replace(r"\*", ".*")) for start in starts if start]


def _has_rule(place: str) -> bool:
    """Whether a rule cites the lines before a check, in megatron-core 0.19.2."""
    file, _, line = place.rpartition(":")
    cited = (rule.source for rule in RULES.values() if isinstance(rule.source, Lines))
    near = (one.numbers[-1] for one in cited if one.numbers and file.endswith(one.file))
    return any(0 <= int(line) - number < 8 for number in near)


def is_known(found: Found, texts: list[re.Pattern[str]]) -> bool:
    """Whether an option has a row, a label a release, or a check a rule."""
    if found.kind == "check":
        return any(text.match(found.name) for text in texts) or _has_rule(found.place)
    if found.kind == "label":
        return found.name in _LABELS
    if found.place.startswith("torchtitan"):
        return found.name in {row.name.rpartition(".")[2] for row in TORCHTITAN}
    return found.name in SETTINGS or option_of_flag(found.name) is not None


def main(words: list[str] | None = None) -> None:
    """Print a line for each that is not known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("release", type=Path, help="a wheel, or the folder of one")
    parser.add_argument("--after", type=Path, help="an older release, to leave out what it has")
    given = parser.parse_args(words)
    for path in (given.release, given.after or given.release):
        if not path.is_dir() and not zipfile.is_zipfile(path):
            parser.error(f"{path} is no wheel and no folder")
    older = {(one.kind, one.name) for one in what_it_has(given.after)} if given.after else set()
    texts, seen = _known_texts(), set(older)
    for one in what_it_has(given.release):
        if (one.kind, one.name) not in seen and not is_known(one, texts):
            seen.add((one.kind, one.name))
            print(f"{one.kind:6}  {one.place}  {one.name[:120]}")


if __name__ == "__main__":
    main()
