"""The house: direction of imports, no circles, roots that hold the public front alone, and what
importing loads."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from advisor.frameworks.megatron.labels import ORDER
from advisor.frameworks.megatron.plan import REGIONS
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, NEMO

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
    "tomlkit",
    "networkx",
)
# Folders from the bottom up: each imports from itself and from those before it.
FOLDERS = {
    "advisor": [
        *("base", "models", "hardware", "job", "layers", "plan", "answer", "memory", "time"),
        *("reading",),
        *("frameworks", "request", "learning", "search", "step"),
        *("lint", "diagnose", "report", "explorer", "api", "cli"),
    ],
    "harness": [
        *("base", "trial", "measure", "backends", "planner", "logs", "judge", "execution"),
        *("calibration", "rehearsal", "sweeps", "report", "api", "cli"),
    ],
    "research": ["rows", "kernels", "steps", "campaign", "probes"],
}
FRONT = {"__init__.py", "__main__.py", "py.typed"}


@cache
def _modules() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    found = {}
    for package in FOLDERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


@cache
def _imports(module: str) -> frozenset[str]:
    """Modules of ours that a module imports anywhere: in functions, for type checking alone, by a
    name given to import_module."""
    known, found = _modules(), set()
    for node in ast.walk(ast.parse(known[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known.keys() or {node.module}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return frozenset(found & known.keys()) - {module}


def _level(module: str) -> tuple[str, int]:
    package, _, rest = module.partition(".")
    folder = rest.partition(".")[0]
    order = FOLDERS[package]
    return package, order.index(folder) if folder else len(order)


def test_imports_point_down() -> None:
    packages, upward = list(FOLDERS), []
    for module in _modules():
        package, level = _level(module)
        for name in _imports(module):
            other, other_level = _level(name)
            below = packages.index(other) < packages.index(package)
            if not (other_level <= level if other == package else below):
                upward.append(f"{module} imports {name}")
    assert not upward


def test_no_module_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter({name: _imports(name) for name in _modules()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("package", FOLDERS)
def test_the_root_holds_the_public_front_alone(package: str) -> None:
    loose = {path.name for path in (ROOT / package).iterdir() if path.is_file()} - FRONT
    assert not loose
    folders = {path.name for path in (ROOT / package).iterdir() if list(path.glob("*.py"))}
    assert folders == set(FOLDERS[package])


def test_a_folder_says_its_idea_in_a_line() -> None:
    folders = [path for path in _modules().values() if path.name == "__init__.py"]
    assert [path for path in folders if not ast.get_docstring(ast.parse(path.read_text()))] == []


# Names that stand in several folders because each does there for its subject what the others do
# for theirs; every other name stands once.
SAME_ROLE = frozenset(
    [
        "adapters",
        "attention",
        "block",
        "checks",
        "context_parallel",
        "core_attention",
        "ends",
        "family",
        "flags",
        "framework",
        "golden",
        "latent_attention",
        "linear",
        "main",
        "memory_model",
        "model",
        "moe",
        "norms",
        "options",
        "plan",
        "reader",
        "rules",
        "runner",
        "setting",
        "static",
        "step",
        "supported_jobs",
    ]
)


def test_a_name_stands_twice_only_for_the_same_role() -> None:
    names = Counter(
        path.stem for path in _modules().values() if path.stem not in ("__init__", "__main__")
    )
    assert {name for name, count in names.items() if count > 1} == SAME_ROLE


RUNS = (
    "harness.cli.run, harness.cli.compare, harness.cli.golden, "
    "harness.execution.worker, harness.execution.runner"
)


@pytest.mark.parametrize(
    "modules", ["advisor, advisor.cli.main", "harness, harness.cli.main", RUNS]
)
def test_importing_loads_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_data_and_documents_name_no_path_of_a_machine() -> None:
    words = ("../" + "shared", "/work/" + "main", "/" + "tmp/oracle")
    tests = (ROOT / "tests").rglob("*.py")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("configs/**/*.yaml"), *_modules().values(), *tests):
        text = path.read_text()
        assert not any(word in text for word in words), path


WAY_FROM_REQUEST_TO_JOB = ("advisor.request", "advisor.job", "advisor.base", "advisor.hardware")
MOST_LINES, MOST_BRANCHES = 40, 10
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.Try,
    ast.IfExp,
    ast.BoolOp,
    ast.comprehension,
    ast.match_case,
)


def _functions(module: str) -> list[ast.FunctionDef]:
    tree = ast.parse(_modules()[module].read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize(
    "module", [name for name in _modules() if name.startswith(WAY_FROM_REQUEST_TO_JOB)]
)
def test_functions_from_request_to_job_tell_one_story(module: str) -> None:
    for function in _functions(module):
        lines = (function.end_lineno or 0) - function.lineno + 1
        branches = sum(isinstance(node, BRANCHES) for node in ast.walk(function))
        assert lines <= MOST_LINES, f"{module}.{function.name} has {lines} lines"
        assert branches <= MOST_BRANCHES, f"{module}.{function.name} has {branches} branches"


# A framework's name in any spelling, also within a longer word; nemo is not nemotron, a model.
FRAMEWORK = re.compile(
    r"megatron|mcore|bridge|nemo(?!tron)|titan|fsdp|deepspeed|hugging_?face|accelerate"
    r"|(?<![a-z])transformers|llama_?factory|axolotl|swift|automodel|\btrl\b",
    re.IGNORECASE,
)
RELEASES = frozenset(one.version for one in (*MEGATRON_CORE, *MEGATRON_BRIDGE, *NEMO))
RELEASE = re.compile(r"(\d+\.\d+)(?:\.\d+)?")
# What Megatron calls parts of a layer where it recomputes or offloads them; mlp and moe are also
# what everybody calls them, and count in the spelling of a setting alone.
LABELS = frozenset((*ORDER, *REGIONS))
COMMON = {"mlp", "moe"}
SPELT = re.compile(rf"(?:selective:|offload=|modules[ =])((?:(?:{'|'.join(LABELS)})\b[, ]?)+)")
# Where the frameworks' names are at home.
THEIR_FOLDERS = ("advisor.frameworks", "advisor.models.config_json", "harness.backends")
THEIR_FOLDERS += ("harness.logs", "research")
FAMILIES = tuple(
    f"advisor.layers.{path.parent.name}"
    for path in (ROOT / "advisor" / "layers").glob("*/__init__.py")
)
ALLOWED: dict[str, tuple[str, set[str]]] = {
    "advisor.models.options": (
        "a value of model.transformer_impl, in files of models and in JSON",
        {"transformers"},
    ),
    "advisor.job.loss_head": (
        "whose code a head is: values of head.implementation",
        {"transformers", "megatron", "nemo", "titan", "automodel", "trl"},
    ),
    "harness.trial.trial": ("a value of backend=, in requests and in result.json", {"megatron"}),
    "harness.report.evidence": ("a report cites whose convention its FLOPs follow", {"megatron"}),
}


def _texts(tree: ast.Module) -> Iterator[str]:
    """Identifiers, imports and string literals of a module, except docstrings."""
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value
            continue
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word


def _names_of_frameworks(module: str) -> set[str]:
    found = set()
    for text in _texts(ast.parse(_modules()[module].read_text())):
        found |= {match[0].lower() for match in FRAMEWORK.finditer(text)}
        found |= {text} & (LABELS - COMMON)
        release = RELEASE.fullmatch(text)
        found |= {release[1]} & RELEASES if release else set()
        found |= {word for match in SPELT.finditer(text) for word in re.findall(r"\w+", match[1])}
    return found


def _is_theirs(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{folder}." for folder in (*THEIR_FOLDERS, *FAMILIES)))


def test_a_framework_is_named_in_its_own_folders_alone() -> None:
    """Its name, a release or a label of its modules, anywhere but in docstrings."""
    others = [name for name in _modules() if not _is_theirs(name)]
    found = {module: names for module in others if (names := _names_of_frameworks(module))}
    assert found == {module: allowed for module, (_, allowed) in ALLOWED.items()}
