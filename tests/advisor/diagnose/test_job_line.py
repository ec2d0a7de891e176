"""The job of a log as a line for `advise`, and failures that no log shows."""

from pathlib import Path

import pytest

from advisor.base.configuration import load_yaml
from advisor.base.errors import UserError
from advisor.cli import main as cli
from advisor.diagnose.job_line import job_words
from advisor.diagnose.symptoms import symptoms, symptoms_of
from tests.advisor.diagnose.test_out_of_memory import OOM_LOGS

LOGS = {
    case["name"]: case for case in load_yaml(Path(__file__).parent / "job_logs.yaml").values["logs"]
}
LOGITS = next(case["log"] for case in OOM_LOGS if case["name"] == "megatron-vocab-cross-entropy")


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in LOGS.items()])
def test_the_job_of_a_log(case) -> None:
    """As the log's dump or command says; what it does not say is named."""
    if "missing" in case:
        with pytest.raises(UserError, match=case["missing"]):
            job_words(case["log"])
        return
    words, ran = job_words(case["log"])
    assert [one for one in case["words"] if one not in " ".join(words)] == []
    assert ran == case.get("ran", ran)


def test_the_line_is_one_that_advise_takes_and_that_fits(capsys, tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text(LOGS["megatron-arguments"]["log"] + LOGITS)
    assert cli.main(["diagnose", str(log)]) == 0
    shown = capsys.readouterr().out
    line = " ".join(shown[shown.index("advise    ") :].split()).removeprefix("advise advise ")
    assert cli.main(line.partition(" (")[0].split()) == 0
    log.write_text(LOGITS)
    assert cli.main(["diagnose", str(log)]) == 0
    assert "the log does not hold the job's options" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("the loss differs only with recompute", "F046"),
        ("hang without a text", "F214"),
        ("out of memory later after some steps", "F217"),
        ("no memory saved by core_attn", "F031"),
        ("memory grows with gradient accumulation", "F277"),
        ("use_reentrant=False is ignored by Trainer", "F073"),
        ("training hangs after a few hundred steps with no error", "S003"),
        ("loss goes to nan after 1000 steps with fp8", "S005"),
        ("fp16 loss becomes nan but bf16 is fine", "S028"),
        ("memory slowly grows every step until it crashes", "S010"),
        ("training stuck at initializing process group", "S004"),
        ("zero3 is much slower than zero2", "S041"),
        ("grad norm explodes at step 2000", "S031"),
    ],
)
def test_a_symptom_in_a_users_words(text: str, first: str) -> None:
    assert symptoms_of(text)[0].id == first


def test_an_unknown_symptom_lists_all(capsys) -> None:
    assert cli.main(["diagnose", "--symptom", "list"]) == 0
    listed = capsys.readouterr().out
    assert [one.id for one in symptoms() if one.id not in listed] == []
    assert cli.main(["diagnose", "--symptom", "bananas"]) == 1
    assert capsys.readouterr() == (listed, "advise: no known symptom is like 'bananas'\n")
    assert cli.main(["diagnose", "--symptom", "slower", "than", "before"]) == 0
    assert "fix " in capsys.readouterr().out
