"""`advise --solve` and `--gpus A,B`: one table, plain data, a picture; wrong lines are refused."""

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest

import advisor
from advisor.cli.main import main

JOB = ["--model", "llama3_8b", "--gpus", "8xH100", "--tp", "2", "--quick"]


def test_the_page_has_the_sentence_the_table_and_the_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*JOB, "--solve", "micro_batch_size"]) == 0
    text = capsys.readouterr().out
    assert "Largest micro batch that fits: " in text
    assert "micro batch  layout" in text
    assert "--tensor-model-parallel-size 2" in text
    assert "ask with --micro-batch-size " in text


def test_json_obeys_its_schema_and_csv_has_the_same_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*JOB, "--solve", "memory", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, advisor.solution_schema())
    assert found["best"]["value"] == found["best"]["best"]["budget_bytes"]
    assert main([*JOB, "--solve", "memory", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["value"]) for row in rows] == [one["value"] for one in found["trials"]]


def test_several_gpus_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = ["--model", "llama3_8b", "--gpus", "8xH100,8xB200", "--price-per-gpu-hour", "2,4"]
    assert main([*line, "--plot", str(tmp_path / "gpus.svg")]) == 0
    text = capsys.readouterr().out
    assert "Fastest: 8xB200" in text
    assert "Cheapest: " in text
    drawn = (tmp_path / "gpus.svg").read_text(encoding="utf-8")
    assert "8xH100" in drawn
    assert "cost of 10^12 tokens" in drawn


def test_nothing_fits_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--model", "llama3_70b", "--gpus", "8xH100", "--tp", "8", "--pp", "1", "--quick"]
    assert main([*line, "--solve", "memory"]) == 1
    assert "Nothing fits, not even in 79.0 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--solve", "time"], "--solve = time: is unknown"),
        (
            ["--solve", "gpus", "--gpus", "8xH100,8xB200"],
            "several --gpus: cannot be combined with --solve gpus",
        ),
        (["--solve", "gpus", "--explain", "2"], "--explain: cannot be combined with --solve gpus"),
        (["--solve", "gpus", "--format", "html"], "it has --format table, json or csv"),
        (
            ["--gpus", "8xH100,8xB200", "--verify"],
            "--verify: cannot be combined with several --gpus",
        ),
        (["--gpus", "8xH100,8xB200", "--price-per-gpu-hour", "1,2,3"], "is 3 prices of 2 types"),
        (["--price-per-gpu-hour", "1,2"], "is 2 prices of 1 type"),
        (["--gpus", "8xH100,8xFOO"], "FOO: unknown GPU type"),
        (["--solve", "gpus", "--solve", "memory"], "cannot be combined with --solve gpus"),
        (["--gpus", "8xH100,B200"], "B200: is not COUNTxTYPE"),
        (["--certainty", "95"], "--certainty = 95.0: must be from 0.5 to 0.999"),
        (["--certainty", "high"], "is not a decimal number; write e.g. --certainty 0.95"),
    ],
)
def test_a_wrong_line(more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama3_8b", "--gpus", "8xH100", *more]) == 2
    assert words in capsys.readouterr().err


def test_certainty_decides_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same rows, more are taken to fit where less certainty is asked for."""
    counts = []
    for certainty in ("0.5", "0.9", "0.99"):
        line = [*JOB, "--seq-length", "32768", "--certainty", certainty, "--format", "json"]
        main(line)
        rows = json.loads(capsys.readouterr().out)["candidates"]
        assert all(row["fits"] is (row["fit_probability"] >= float(certainty)) for row in rows)
        counts.append(sum(row["fits"] for row in rows))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_the_type_of_gpus_is_enough_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[3] / "examples/pretrain_llama3_8b.sh"
    assert main(["--from", str(script), "--gpus", "H100", "--solve", "gpus", "--quick"]) == 0
    assert "Fewest GPUs that fit: 4xH100" in capsys.readouterr().out
