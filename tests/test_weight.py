"""Weight is a feature: a ceiling that an issue raises by what it says that it adds."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each issue that adds raises them by what it says; what gets lighter lowers them.
LINES, FILES, STATEMENTS = 91_950, 650, 57_500
LINES_OF_TESTS = 70_000


def _sources(*folders: str) -> list[str]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path.read_text(encoding="utf-8") for path in files]


@pytest.fixture(scope="module")
def product() -> list[str]:
    return _sources("advisor", "harness")


def test_lines_of_the_product(product: list[str]) -> None:
    assert sum(len(text.splitlines()) for text in product) <= LINES


def test_files_of_the_product(product: list[str]) -> None:
    assert len(product) <= FILES


def test_statements_of_the_product(product: list[str]) -> None:
    nodes = (node for text in product for node in ast.walk(ast.parse(text)))
    assert sum(isinstance(node, ast.stmt) for node in nodes) <= STATEMENTS


def test_lines_of_tests() -> None:
    assert sum(len(text.splitlines()) for text in _sources("tests")) <= LINES_OF_TESTS
