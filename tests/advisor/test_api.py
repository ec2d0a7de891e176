"""`import advisor`: what is public, what a call answers, and how it refuses."""

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

import advisor
import harness
from advisor.api.asked_files import AskedFiles
from advisor.api.keywords import KNOWN, SHORT
from advisor.cli.help import RANKING
from advisor.cli.main import main
from advisor.report.plain_advice import plain_advice
from advisor.request.request import Request
from tests.advisor.tables import tables

TABLES = tables(__file__)

ROOT = Path(__file__).parents[2]
JOB: dict[str, Any] = {
    "model": "llama3_8b",
    "gpus": "8xH100",
    "recompute": ["none", "full:block:4"],
}
WORDS = "--model llama3_8b --gpus 8xH100 --recompute none --recompute full:block:4"


@pytest.fixture(scope="module")
def advice() -> advisor.Advice:
    return advisor.advise(**JOB, explain=1)


def printed(capsys: pytest.CaptureFixture[str], words: str) -> str:
    main([*words.split(), "--format", "json"])
    return capsys.readouterr().out


@pytest.mark.parametrize("package", [advisor, harness])
def test_every_public_name_is_there(package: Any) -> None:
    assert sorted(package.__all__) == dir(package)
    for public in package.__all__:
        found = getattr(package, public)
        assert public == "__version__" or found.__doc__
    with pytest.raises(AttributeError, match="no attribute 'advice'"):
        _ = package.advice


@pytest.mark.parametrize("package", ["advisor", "harness"])
def test_importing_loads_no_other_module_of_ours(package: str) -> None:
    code = (
        f"import sys, {package}; print(sorted(name for name in sys.modules "
        "if name.partition('.')[0] in ('advisor', 'harness')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"['{package}']\n"


def test_a_call_answers_what_the_command_prints(advice: advisor.Advice, capsys) -> None:
    assert advice.to_json() == printed(capsys, f"{WORDS} --explain 1")
    assert advice.fits
    assert advice.best is (advice.fastest_found or advice.candidates[0])
    assert [candidate.recompute.spec for candidate in advice.candidates] == ["none", "full:block:4"]


@pytest.mark.parametrize("name", ["tight", "roomy", "hopeless", "layouts"])
def test_json_comes_back_as_the_same_advice(name: str, request: pytest.FixtureRequest) -> None:
    whole = plain_advice(request.getfixturevalue(name), top=3)
    back = advisor.Advice.from_json(whole.to_json())
    assert back == whole
    assert back.to_json() == whole.to_json()


def test_keys_of_later_releases_are_passed_over(advice: advisor.Advice) -> None:
    report = json.loads(advice.to_json())
    report["new"] = report["candidates"][0]["new"] = report["job"]["model"]["new"] = {"a": 1}
    assert advisor.Advice.from_json(json.dumps(report)) == advice


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "advice: is not valid JSON: line 1, column 2: Expecting property name"),
        ("[" * 100_000, "advice: is not valid JSON: line 1, column 101: nests deeper than"),
        ("[]", "advice = list: must be one JSON object"),
        ("{}", "advice: fits = (none): is missing"),
        ('{"fits": 1}', "advice: fits = 1: must be true or false"),
    ],
)
def test_what_is_no_advice_is_one_line(text: str, words: str) -> None:
    with pytest.raises(advisor.UserError, match=re.escape(words)):
        advisor.Advice.from_json(text)


def test_another_schema_version_is_refused(advice: advisor.Advice) -> None:
    other = replace(advice, schema_version=2)
    with pytest.raises(advisor.UserError, match=re.escape("schema_version = 2: must be 1")):
        advisor.Advice.from_json(other.to_json())


def test_every_field_of_a_request_is_a_keyword() -> None:
    files = set(AskedFiles.__struct_fields__) - {"written"} | {"output"}
    shown = {"top", "front", "explain", "verify", "price_per_gpu_hour"}
    keywords = set(KNOWN) - {"unsaid"}  # the former name of omitted
    assert keywords - SHORT.keys() - files - shown == set(Request.__struct_fields__)
    assert set(SHORT.values()) | files | shown < keywords


@pytest.mark.parametrize(
    ("keywords", "words"),
    TABLES["test_keywords_mean_what_flags_mean"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keywords_mean_what_flags_mean(keywords: dict[str, Any], words: str, capsys) -> None:
    job = {"recompute": "none", **keywords}
    line = words if "--recompute" in words else f"{words} --recompute none"
    asked = advisor.advise(model="llama3_8b", gpus="8xH100", top=1, **job)
    assert asked.to_json() == printed(capsys, f"--model llama3_8b --gpus 8xH100 --top 1 {line}")


@pytest.mark.parametrize(
    ("keywords", "words"), TABLES["test_a_wrong_keyword_is_one_line_of_python"]
)
def test_a_wrong_keyword_is_one_line_of_python(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(advisor.UserError, match=re.escape(words)) as raised:
        advisor.advise(**{**JOB, **keywords})
    assert "--" not in str(raised.value)


def test_every_flag_is_a_keyword_or_says_what_python_has_instead() -> None:
    for flag in RANKING.flags:
        names = [name.lstrip("-").replace("-", "_") for name in flag.names]
        if not {flag.name, *names} & set(KNOWN):
            wrong = rf"is not a keyword: {names[-1]}; .*\b(Advice\.|advisor\.)(\w+)"
            with pytest.raises(advisor.UserError, match=wrong) as raised:
                advisor.advise(**JOB, **{names[-1]: "x"})
            package, name = re.search(wrong, str(raised.value)).groups()
            assert hasattr(advisor.Advice if package == "Advice." else advisor, name)


def test_a_job_that_is_read_is_that_of_the_command(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT / "tests/docs/files")
    job = advisor.read("train.sh")
    assert (job.seq_length, job.tensor_model_parallel_size, job.gpus) == (8192, 2, "")
    assert ("num_layers" in repr(job), "window_size" in repr(job)) == (True, False)
    line = (
        "--from train.sh --gpus 8xH100 --quick --recompute none --tp 4 job.expandable_segments=true"
    )
    how: dict[str, Any] = {"gpus": "8xH100", "quick": True, "recompute": "none"}
    same = {"tp": 4, "overrides": {"job.expandable_segments": True}}
    answer = advisor.advise(job, **how, **same)
    assert answer.to_json() == printed(capsys, line)
    assert advisor.advise(source="train.sh", **how, **same) == answer
    job = advisor.read("train.sh", overrides=same["overrides"])
    changed = replace(job, tensor_model_parallel_size=4, gpus="8xH100")
    assert advisor.advise(changed, quick=True, recompute="none") == answer
    assert advisor.evaluate("none", changed) == answer.best
    two = tmp_path / "two.sh"
    first = Path("train.sh").read_text()
    two.write_text(first + first.replace("--num-layers 32", "--num-layers 24"))
    with pytest.raises(advisor.UserError, match=r'choose one, e.g. source=".*two.sh#1"'):
        advisor.read(two)
    assert "model.num_layers=24" in advisor.read(f"{two}#2").overrides


def test_a_difference_prints_the_page_of_the_command(advice: advisor.Advice, capsys) -> None:
    other = advisor.advise(**JOB, tp=2)
    main(["diff", WORDS, f"{WORDS} --tp 2"])
    page = capsys.readouterr().out.partition("The job\n")[2]
    found = advisor.diff(advice, other)
    assert str(found).partition("The job\n")[2] + "\n" == page
    assert html.escape(page.strip()) in found._repr_html_()
    with pytest.raises(advisor.UserError, match=r"first = .*: must be an Advice"):
        advisor.diff(JOB, JOB)


def test_files_of_a_call_are_those_of_the_command(tmp_path: Path, capsys) -> None:
    for name, flag in (("output", "a.json"), ("output", "a.csv"), ("trace", "t.json")):
        ours, theirs = tmp_path / flag, tmp_path / f"cli-{flag}"
        advisor.advise(**JOB, quick=True, **{name: ours})
        main([*WORDS.split(), "--quick", f"--{name}", str(theirs)])
        assert ours.read_text()[:200] == theirs.read_text()[:200]
    advisor.advise(**JOB, quick=True, output=str(tmp_path / "a.html"))
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert advisor.advise(**JOB, quick=True, front=True).candidates


@pytest.mark.parametrize("wrong", [3, None, [1]])
@pytest.mark.parametrize(
    "call", [advisor.advise, advisor.load_model, advisor.load_gpu, advisor.Advice.from_json]
)
def test_a_wrong_type_is_one_line(call: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(advisor.UserError):
        call(wrong)


def test_a_model_is_a_name_a_path_its_fields_or_itself(advice: advisor.Advice) -> None:
    spec = advisor.load_model("llama3_8b")
    path = ROOT / "configs" / "model" / "llama3_8b.yaml"
    one = {**JOB, "top": 1}
    whole = replace(advice, explain=None, candidates=advice.candidates[:1])
    for model in (spec, path, {"base": "llama3_8b", "name": "llama3_8b"}):
        assert advisor.advise(**{**one, "model": model}) == whole
    with pytest.raises(advisor.UserError, match="layers = 3: is not a known key"):
        advisor.load_model({"name": "mine", "layers": 3})


def test_a_price_gives_money_and_changes_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {**JOB, "recompute": "none"}
    free, paid = advisor.advise(**asked), advisor.advise(**asked, price_per_gpu_hour=2.5)
    assert paid.to_json() == printed(
        capsys, "--model llama3_8b --gpus 8xH100 --recompute none --price-per-gpu-hour 2.5"
    )
    (one,), (other,) = free.candidates, paid.candidates
    assert (free.job.price_per_gpu_hour, one.price_per_trillion_tokens) == (None, None)
    assert paid.job.price_per_gpu_hour == 2.5
    assert other.price_per_trillion_tokens == other.gpu_hours_per_trillion_tokens * 2.5
    assert replace(other, price_per_trillion_tokens=None) == one


def test_the_front_is_what_no_other_beats() -> None:
    whole = advisor.advise(model="llama3_70b", gpus="32xH100", quick=True)
    assert whole.front == tuple(one for one in whole.candidates if one.dominated_by is None)
    by_memory = sorted(whole.front, key=lambda one: one.peak_reserved_bytes)
    times = [one.step_time_seconds for one in by_memory]
    assert times == sorted(times, reverse=True)
    assert 1 < len(times) < len(whole.candidates)
    for one in whole.candidates:
        if one.dominated_by is not None:
            other = whole.candidates[one.dominated_by - 1]
            assert other.peak_reserved_bytes <= one.peak_reserved_bytes
            assert other.step_time_seconds <= one.step_time_seconds


def test_candidates_of_a_search_say_what_they_change() -> None:
    whole = advisor.advise(
        model="llama3_8b", gpus="8xH100", search="layout", micro_batch_size=1, tp=1
    )
    usual = advisor.advise(model="llama3_8b", gpus="8xH100", micro_batch_size=1, tp=1, top=1)
    assert len({str(one.changes) for one in whole.candidates}) > 1
    for one in whole.candidates:
        changed = {
            f"layout.{name}": getattr(one.layout, name)
            for name in one.layout.__struct_fields__
            if getattr(one.layout, name) != getattr(usual.job.layout, name)
        }
        said = {path: v for path, v in one.changes.items() if path.startswith("layout.")}
        assert changed.items() <= said.items()
        assert said == {path: getattr(one.layout, path.partition(".")[2]) for path in said}
        alike = one.layout == whole.candidates[0].layout
        assert bool(one.job_flags) != alike
    assert advisor.Advice.from_json(whole.to_json()) == whole


def test_evaluate_is_one_candidate(advice: advisor.Advice) -> None:
    request = Request(model="llama3_8b", gpus="8xH100", recompute=("none", "full:block:4"))
    assert advisor.advise(request, explain=1) == advice, "a request is taken as it is"
    alone = advisor.evaluate("full:block:4", model="llama3_8b", gpus="8xH100")
    among = advice.candidates[1]
    assert alone.stages == among.stages
    assert alone.time_seconds == among.time_seconds
    with pytest.raises(advisor.UserError, match='recompute="selective:moe_act": '):
        advisor.evaluate("selective:moe_act", model="llama3_8b", gpus="8xH100")


def test_a_dataframe_has_the_columns_of_the_csv(advice: advisor.Advice, capsys) -> None:
    pytest.importorskip("pandas")
    frame = advice.to_dataframe()
    main([*WORDS.split(), "--format", "csv"])
    assert list(frame.columns) == capsys.readouterr().out.splitlines()[0].split(",")
    assert list(frame["peak_reserved_bytes"]) == [c.peak_reserved_bytes for c in advice.candidates]


def test_tables_have_units_and_a_row_for_each(advice: advisor.Advice) -> None:
    pytest.importorskip("pandas")
    table, deep = advice.table(), advisor.advise(model="llama3_70b", gpus="32xH100")
    assert list(table["recompute"]) == ["none", "full:block:4"]
    gib = [one.peak_reserved_bytes / 2**30 for one in advice.candidates]
    assert list(table["peak_reserved_gib"]) == gib
    stages = deep.stages_table(2)
    parts = ["weights", "gradients", "optimizer", "activations", "transient", "overhead"]
    sums = stages[[f"{part}_gib" for part in parts]].sum(axis="columns")
    assert list(stages["peak_reserved_gib"]) == pytest.approx(list(sums))
    assert len(stages) == deep.candidates[1].layout.pipeline_model_parallel_size > 1
    assert list(deep.stages_table()["stage"]) == [one.stage for one in deep.best.stages]
    with pytest.raises(advisor.UserError, match="rank = 999: must be 0, or the rank of a"):
        deep.stages_table(999)


@pytest.mark.parametrize("name", ["to_dataframe", "table", "stages_table"])
def test_without_pandas_it_says_what_to_install(name: str, advice: Any, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(advisor.UserError, match="DataFrame: needs pandas; in the checkout run"):
        getattr(advice, name)()


def test_every_answer_obeys_the_schema(request: pytest.FixtureRequest, advice: Any) -> None:
    validator = jsonschema.Draft202012Validator(advisor.json_schema())
    validator.check_schema(validator.schema)
    synthetic = [request.getfixturevalue(name) for name in ("tight", "hopeless", "layouts")]
    answers = [advice, *map(plain_advice, synthetic)]
    answers += [
        advisor.advise(model="mixtral_8x7b", gpus="64xH100", top=2),
        advisor.advise(model="qwen3_next_80b_a3b", gpus="64xH100", top=1),
        advisor.advise(model="llama3_8b", gpus="8xA100", framework="deepspeed", top=1),
    ]
    for answer in answers:
        validator.validate(json.loads(answer.to_json()))


@pytest.mark.parametrize(
    "path", [("fits",), ("candidates", 0, "rank"), ("job", "model", "num_layers"), ("verdict",)]
)
def test_the_schema_refuses_another_type(path: tuple[Any, ...], advice: advisor.Advice) -> None:
    report = at = json.loads(advice.to_json())
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = []
    validator = jsonschema.Draft202012Validator(advisor.json_schema())
    assert [list(error.path) for error in validator.iter_errors(report)] == [list(path)]


def test_the_shipped_schemas_are_those_of_the_types() -> None:
    """`python scripts/write_schemas.py` writes them again."""
    for package, file in ((advisor, "advice"), (harness, "result")):
        path = ROOT / package.__name__ / "api" / f"{file}.schema.json"
        assert json.loads(path.read_text()) == package.json_schema(), path
