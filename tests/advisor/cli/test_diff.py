"""`advise diff` and `--against`: real requests, compared."""

import json

import pytest

import advisor
from advisor.answer.difference import Difference, options_of
from advisor.base.json_schema import json_schema
from advisor.base.plain_json import from_text
from advisor.cli import main

JOB = "--model llama3_70b --gpus 32xH100"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Difference:
    """What a command prints in JSON."""
    assert main.main([*words, "--format", "json"]) == 0
    text = capsys.readouterr().out
    found: Difference = from_text(Difference, text, "difference")
    assert found.to_json() == text
    return found


def test_two_settings_of_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    none, mlp = f"{JOB} --recompute none", f"advise {JOB} --recompute selective:mlp"
    found = asked(capsys, "diff", none, mlp)
    assert found.job == ()
    assert (found.first.recompute, found.second.recompute) == ("none", "selective:mlp")
    assert found.flags_only_first == ()
    assert found.flags_only_second == (
        "--recompute-granularity selective",
        "--recompute-modules mlp",
    )
    assert sum(found.memory_bytes.values()) == found.peak_reserved_bytes
    assert found.peak_reserved_bytes < 0 < found.time_seconds["recompute"]
    assert sum(found.time_seconds.values()) == pytest.approx(found.step_time_seconds)
    assert asked(capsys, *none.split(), "--against", "--recompute selective:mlp") == (
        asked(capsys, "diff", none, mlp.removeprefix("advise "))
    )


@pytest.mark.slow
def test_two_machines_say_where_each_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "diff", JOB, JOB.replace("H100", "H200"))
    fields = {one.field: one for one in found.job}
    assert fields["gpus.type"].second == "H200-SXM-141GB"
    ranks = fields["layout.tensor_model_parallel_size"]
    assert (ranks.first_origin, ranks.second_origin) == ("recipe llama3_70b_32xh100", "searched")


def test_two_releases(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, *JOB.split(), "--framework-version", "0.19", "--against", "0.13")
    assert (found.first.framework_version, found.second.framework_version) == ("0.19", "0.13")
    assert {one.field for one in found.job} == {
        "job.framework_version",
        "job.transformer_engine_version",
        "model.cross_entropy_fusion",  # of which 0.19 refuses Transformer Engine's
    }


def test_the_same_from_python() -> None:
    settings = ("none", "selective:mlp")
    one, other = (advisor.advise(model="llama3_8b", gpus="8xH100", recompute=s) for s in settings)
    found = advisor.diff(one, other)
    assert found.peak_reserved_bytes == (
        other.as_typed.peak_reserved_bytes - one.as_typed.peak_reserved_bytes
    )
    assert advisor.diff_schema() == json_schema(
        Difference, title="advise diff --format json, schema_version 1"
    )


def test_the_page_names_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["diff", JOB, f"{JOB} --tp 8"]) == 0
    text = capsys.readouterr().out
    for words in (
        "layout.tensor_model_parallel_size",
        "given",
        "  second  stage ",
        "Flags only in the second",
    ):
        assert words in text
    assert main.main(["diff", JOB, JOB]) == 0
    assert "The flags are the same." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["diff", JOB], "diff: needs two REQUESTs"),
        (["diff", JOB, "--model llama3_70b --gpus 3xH999"], "H999"),
        (
            ["diff", JOB, "--tp 8"],
            f"the second REQUEST has no --model; to change the first: "
            f"advise {JOB} --against '--tp 8'",
        ),
        (["diff", "--tp 8", JOB], "first REQUEST: --model: is missing"),
        (["diff", JOB, f"{JOB} --tp 9999"], "second REQUEST: "),
        (["diff", JOB, f"{JOB} --against 0.13"], "second REQUEST: --against: cannot be combined"),
        ([*JOB.split(), "--against", "--tp 9999"], "advise: --against: "),
        (
            [*JOB.split(), "--against", "0.13", "--against", "0.14"],
            "--against = 0.14: cannot be combined with --against 0.13; give one",
        ),
        (["diff", JOB, "--model 'llama"], "no closing quotation"),
        (["diff", JOB, f"{JOB} --explain"], "--explain: cannot be combined with two requests"),
        ([*JOB.split(), "--against", "0.9"], "0.9"),
        ([*JOB.split(), "--against", "0.13", "--format", "csv"], "use --format table or json"),
    ],
)
def test_a_wrong_request_is_one_line(words: list[str], reported: str, capsys) -> None:
    assert main.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert reported in captured.err


def test_options_of_every_kind_of_line() -> None:
    assert list(options_of("--a 1 --b --layer-freq '[0]*3' --c x y")) == [
        "--a 1",
        "--b",
        "--layer-freq '[0]*3'",
        "--c x y",
    ]
    assert list(options_of("model.x=1 'model.y=[a]' train.z=null")) == [
        "model.x=1",
        "'model.y=[a]'",
        "train.z=null",
    ]
    assert list(options_of(json.dumps({"a": 1, "b": {"c": True}}))) == ["a: 1", "b.c: true"]
    assert list(options_of("f(x); g(y, z)")) == ["f(x)", "g(y, z)"]
