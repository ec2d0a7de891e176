"""Says whether tests would notice a fault: changes lines of core logic, and runs their tests.

A test that passes with any sign is none, and recorded answers hide a fault as soon as they are
recorded anew. One line at a time is changed in a copy of what git has staged: a sign, a boundary,
a factor, a constant, and/or, min/max. ``make mutants SEED=2``; the exit code is 1 below 80 % (of
`make` itself: 2). A line whose change changes no result counts as not noticed: the bar has room.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
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


def outcome(copy: Path, folder: str, file: str, limit: int = 3600) -> str:
    """Whether the folder's tests pass, those of the changed file first: ``passes``, ``fails``, or
    ``hangs`` after ``limit`` seconds of processor time (or ten times as long asleep), so that a
    machine busy with other work makes no hang."""
    near = Path("tests", file)
    tests = [str(near.with_name(f"test_{near.name}")), f"tests/{folder}"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [one for one in tests if (copy / one).exists()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    limited = ["bash", "-c", f'ulimit -t {limit} && exec "$@"', "bash", *command]
    try:
        code = subprocess.call(
            limited, cwd=copy, env=environment, stdout=subprocess.DEVNULL, timeout=10 * limit
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    return "hangs" if code < 0 else "fails" if code else "passes"


def notices(copy: Path, folder: str, file: str, number: int, limit: int) -> bool:
    """Whether the folder's tests fail or hang with one node of the file changed; says which."""
    text = (copy / file).read_text()
    node = list(sites(tree := ast.parse(text)))[number]
    before, line = ast.unparse(node), getattr(node, "lineno", 0)
    change(node)
    (copy / file).write_text(ast.unparse(tree))
    tests = outcome(copy, folder, file, limit)
    (copy / file).write_text(text)
    print(f"{tests:6}  {file}:{line}: {before}  ->  {ast.unparse(node)}", flush=True)
    return tests != "passes"


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
            start, here = os.times(), lines(Path(name), folder)
            if outcome(Path(name), folder, folder) != "passes":
                sys.exit(f"tests/{folder} fails before anything is changed")
            limit = 30 + 5 * int(sum(os.times()[2:4]) - sum(start[2:4]))
            for key in chance.sample(
                sorted(here), args.lines * at // len(args.folders) - len(found)
            ):
                number = chance.choice(here[key])
                found.append(notices(Path(name), folder, key[0], number, limit))
    print(f"{sum(found)} of {len(found)} noticed by the tests of their folder")
    return int(sum(found) < BAR * len(found))


if __name__ == "__main__":
    sys.exit(main())
