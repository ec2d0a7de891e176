"""docs/architecture.md says what the imports say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_architecture.py"))


def test_the_page_is_as_the_imports_have_it() -> None:
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"]()
    assert SCRIPT["DRAWING"].read_text(encoding="utf-8") == SCRIPT["picture"]()


def test_what_follows_from_other_imports_is_not_drawn() -> None:
    graph = {"cli": {"search", "base"}, "search": {"base"}, "base": set()}
    assert SCRIPT["direct"](graph) == {"cli": {"search"}, "search": {"base"}, "base": set()}
    assert SCRIPT["levels"](graph) == {"base": 0, "search": 1, "cli": 2}
