"""The command `harness` itself."""

import pytest

from advisor.cli import main as advise
from harness.cli import main as cli


def test_the_version_is_that_of_advise(capsys: pytest.CaptureFixture[str]) -> None:
    assert advise.main(["--version"]) == 0
    theirs = capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == theirs.replace("advise", "harness")
    assert cli.main([]) == 2
