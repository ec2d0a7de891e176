"""The direction of imports, the size of files, and what importing the advisor loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch",
    "numpy",
    "pandas",
    "hydra",
    "omegaconf",
    "optuna",
    "matplotlib",
    "scipy",
    "pyarrow",
    "tree_sitter",
)
# A module may import those of its own layer and of the layers before it.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "units"}),
    frozenset({"reader", "dtypes", "configuration", "request", "outcome"}),
    frozenset({"models.layer_kind", "models.layer_pattern"}),
    frozenset(
        {"models.spec", "models.experts", "models.attention", "models.variants", "models.hybrid"}
    ),
    frozenset({"layout"}),
    frozenset({"pipeline"}),
    frozenset({"layers"}),
    frozenset({"models"}),
    frozenset({"recompute", "schedule"}),
    frozenset({"memory", "cost", "job", "diagnose"}),
    frozenset({"recipes", "split"}),
    frozenset(
        {
            "lint.text",
            "lint.shell",
            "lint.tree",
            "lint.python_source",
            "lint.options",
            "lint.configuration",
            "lint.keys",
            "lint.model_names",
        }
    ),
    frozenset({"frameworks", "answer", "experiments"}),
    frozenset({"job_memory", "job_time", "reshape"}),
    frozenset({"evaluate"}),
    frozenset({"optimizers"}),
    frozenset({"resolve", "ranking", "explain"}),
    frozenset({"layouts", "search"}),
    frozenset({"remedies"}),
    frozenset({"advise", "verify"}),
    frozenset({"lint"}),
    frozenset({"report"}),
    frozenset({"help", "arguments", "subcommands", "commands", "cli"}),
)


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """Absolute names that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _level(module: str) -> int | None:
    """Layer of a module below advisor, by its longest known prefix; None for the package."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for level, names in enumerate(LAYERS):
            if name in names:
                return level
    return None


@pytest.mark.parametrize("path", _modules("advisor"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down_the_layers(path: Path) -> None:
    own = _level(".".join(path.relative_to(ROOT / "advisor").with_suffix("").parts))
    if own is None:
        assert path.name == "__init__.py"
        return
    for name in _imports(path):
        if name.startswith("advisor."):
            level = _level(name.removeprefix("advisor."))
            assert level is None or level <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", _modules("advisor"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_advisor_never_imports_the_harness(path: Path) -> None:
    assert not any(name.split(".")[0] == "harness" for name in _imports(path))


def test_importing_the_advisor_loads_nothing_heavy() -> None:
    code = (
        "import sys, advisor.cli.main, advisor.search.advise, advisor.search.explain\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_the_main_job_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from advisor.cli.main import main\n"
        "code = main(['--model', 'llama3_70b', '--gpus', '32xH100'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0
    assert run.stderr.strip() == "[]"


def test_data_and_documents_name_no_path_of_a_machine() -> None:
    words = ("../" + "shared", "/work/" + "main", "/" + "tmp/oracle")
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("configs/**/*.yaml"),
        *_modules("advisor"),
        *_modules("harness"),
        *_modules("tests"),
    ]:
        text = path.read_text()
        assert not any(word in text for word in words), path
