"""Says whether tests would notice a fault: changes lines of core logic, and runs their tests.

A test that passes with any sign is none, and recorded answers hide a fault as soon as they are
recorded anew. One line at a time is changed in a copy of what git has staged: a sign, a boundary,
a factor, a constant, and/or, min/max. ``make mutants SEED=2``; the exit code is 1 below 80 %.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = "advisor/memory advisor/layers advisor/time advisor/search harness/judge harness/sweeps"
BAR = 0.8
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.USub: ast.UAdd},
    **{ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
}
TEXTS = (ast.JoinedStr, ast.Raise, ast.Assert, ast.arguments, ast.AnnAssign)


def sites(node: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes within functions that :func:`change` changes: no texts, errors, annotations, and no
    decorators (how much a cache holds changes no result)."""
    left_out = [getattr(node, "returns", None), *getattr(node, "decorator_list", ())]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, TEXTS) and child not in left_out:
            within = inside or isinstance(child, ast.FunctionDef)
            if within and change(child, dry=True):
                yield child
            yield from sites(child, within)


def change(node: ast.AST, dry: bool = False) -> bool:
    """Whether the node can be changed; it is, unless the run is dry."""
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    swapped = SWAPS.get(type(operator))
    if isinstance(node, ast.Compare) and swapped and len(node.ops) == 1:
        node.ops = node.ops if dry else [swapped()]  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp) and swapped:
        node.op = operator if dry else swapped()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += not dry
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        node.id = node.id if dry else {"min": "max", "max": "min"}[node.id]
    else:
        return False
    return True


def passes(copy: Path, folder: str, file: str, limit: float) -> bool:
    """Whether the folder's tests do, those of the changed file first; a hang is no pass."""
    near = Path("tests", file)
    tests = [str(near.with_name(f"test_{near.name}")), f"tests/{folder}"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [one for one in tests if (copy / one).exists()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        with open(os.devnull, "w") as nowhere:
            return not subprocess.call(
                command, cwd=copy, env=environment, stdout=nowhere, timeout=limit
            )
    except subprocess.TimeoutExpired:
        return False


def notices(copy: Path, folder: str, file: str, number: int, limit: float) -> bool:
    """Whether the folder's tests fail with one node of the file changed; says which."""
    text = (copy / file).read_text()
    node = list(sites(tree := ast.parse(text)))[number]
    before, line = ast.unparse(node), getattr(node, "lineno", 0)
    change(node)
    (copy / file).write_text(ast.unparse(tree))
    noticed = not passes(copy, folder, file, limit)
    (copy / file).write_text(text)
    print(f"{noticed!s:5}  {file}:{line}: {before}  ->  {ast.unparse(node)}", flush=True)
    return noticed


def lines(copy: Path, folder: str) -> dict[tuple[str, int], list[int]]:
    """File and line of what can be changed -> which of the file's sites stand there."""
    found: dict[tuple[str, int], list[int]] = {}
    for path in sorted((copy / folder).rglob("*.py")):
        for number, node in enumerate(sites(ast.parse(path.read_text()))):
            key = (path.relative_to(copy).as_posix(), getattr(node, "lineno", 0))
            found.setdefault(key, []).append(number)
    return found


def main() -> int:
    """Change lines, and print which ones the tests noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=FOLDERS.split())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=60, help="in all folders together")
    args = parser.parse_args()
    chance, found = random.Random(args.seed), []
    with tempfile.TemporaryDirectory() as name:
        subprocess.check_call(["git", "checkout-index", "-a", f"--prefix={name}/"], cwd=ROOT)
        for at, folder in enumerate(args.folders, start=1):
            start, here = time.monotonic(), lines(Path(name), folder)
            if not passes(Path(name), folder, folder, 3600):
                sys.exit(f"tests/{folder} fails before anything is changed")
            limit = 30 + 5 * (time.monotonic() - start)
            for key in chance.sample(
                sorted(here), args.lines * at // len(args.folders) - len(found)
            ):
                number = chance.choice(here[key])
                found.append(notices(Path(name), folder, key[0], number, limit))
    print(f"{sum(found)} of {len(found)} noticed by the tests of their folder")
    return int(sum(found) < BAR * len(found))


if __name__ == "__main__":
    sys.exit(main())
