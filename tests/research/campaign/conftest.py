"""Plans of the harness's own tests."""

from tests.harness.conftest import make_plan

__all__ = ["make_plan"]
