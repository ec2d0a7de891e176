"""`--format csv` and `--format flags`."""

import csv
import io

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.units import GIB
from advisor.frameworks.names import Framework
from advisor.report.header import framework_words
from advisor.report.plain_advice import csv_report, plain_advice
from advisor.report.setting_flags import all_flags, all_job_flags, flags_report


def rows(advice: Answer, top: int | None = None) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_report(plain_advice(advice, top=top)))))


def test_one_row_a_candidate_with_raw_numbers(tight: Answer) -> None:
    table = rows(tight)
    specs = [row.evaluation.setting.spec for row in tight.candidates]
    assert [row["recompute"] for row in table] == specs
    best = table[0]
    assert int(best["peak_reserved_bytes"]) == 66 * GIB
    assert float(best["step_time_seconds"]) == 9.3
    assert best["fits"] == "True"
    assert best["megatron_lm_flags"].endswith("--recompute-modules mlp")
    assert len(rows(tight, top=2)) == 2
    assert [row["dominated_by"] for row in table] == ["", "1", "", "", "4"]


def test_changes_stand_in_one_cell(layouts: Answer) -> None:
    first, second, third = rows(layouts)
    assert (first["changes"], third["changes"]) == ("", "")
    assert second["changes"].split() == [
        "layout.tensor_model_parallel_size=2",
        "layout.context_parallel_size=2",
        "layout.pipeline_model_parallel_size=8",
        "layout.virtual_pipeline_model_parallel_size=1",
        "layout.data_parallel_size=1",
    ]


def test_no_candidates_give_no_rows(tight: Answer) -> None:
    assert csv_report(plain_advice(replace(tight, candidates=()))) == ""


def test_flags_are_those_of_the_jobs_framework(tight: Answer) -> None:
    assert flags_report(tight) == "--recompute-granularity selective --recompute-modules mlp\n"
    config = replace(tight.job.config, framework=Framework.MEGATRON_BRIDGE)
    job = replace(tight.job, config=config)
    bridge = replace(tight, job=job, recipe_framework=Framework.MEGATRON_BRIDGE)
    assert "model.recompute_granularity=selective " in flags_report(bridge)
    assert flags_report(replace(tight, candidates=())) == ""


def test_layout_flags_come_first(tight: Answer) -> None:
    flags = flags_report(tight, with_layout=True)
    assert flags.startswith("--tensor-model-parallel-size 4 ")
    assert flags.endswith(" --recompute-granularity selective --recompute-modules mlp\n")


def test_every_framework_spells_every_setting(tight: Answer) -> None:
    for candidate in tight.candidates:
        family = all_flags(candidate.evaluation)
        assert set(family) == {Framework.MEGATRON_LM, Framework.MEGATRON_BRIDGE, Framework.NEMO}
        for framework in family:
            assert "\n" not in all_job_flags(candidate.evaluation)[framework]


def test_framework_words(tight: Answer) -> None:
    config = replace(tight.job.config, framework_version="0.16")
    job = replace(tight.job, config=config)
    assert framework_words(job) == "Megatron Core 0.16 with Transformer Engine"
    bridge = replace(config, framework=Framework.MEGATRON_BRIDGE, framework_version="")
    words = framework_words(replace(job, config=bridge))
    assert words.startswith("Megatron Bridge ")
    assert "(Megatron Core 0." in words
