"""Attention that a framework's layers do not have is refused in one line."""

import pytest

from advisor.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--model deepseek_v2_lite model.transformer_impl=local", "use transformer_engine"),
        (
            "--model phi4 --framework fsdp2 model.window_size=1024",
            "has no model of window_size here",
        ),
        (
            "--model phi4 --framework fsdp2 model.mtp_num_layers=1",
            "has no model of mtp_num_layers here",
        ),
        ("--model phi4 model.window_attn_skip_freq=2", "needs window_size"),
    ],
)
def test_one_line(capsys: pytest.CaptureFixture[str], arguments: str, says: str) -> None:
    assert main([*arguments.split(), "--gpus", "8xH100"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
