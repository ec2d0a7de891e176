"""Phases on the page: a row of bars, the phase that decides, remedies, host memory."""

import re

import pytest

from advisor.cli.main import main

JOB = ("--model", "qwen3_8b", "--gpus", "8xH100", "--framework", "huggingface")
GRPO = ("rl.algorithm=grpo", "rl.engine=vllm", "rl.gpu_memory_utilization=0.6")


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main([*JOB, *words])
    return capsys.readouterr().out


@pytest.fixture
def asleep(capsys: pytest.CaptureFixture[str]) -> str:
    return page(capsys, *GRPO, "rl.sleep_level=1", "--quick")


def test_a_phase_is_a_row_with_a_bar_of_the_budget(asleep: str) -> None:
    rows = dict(re.findall(r"^(rollout|old log-\S+|update|weight sync) +([\d.]+) █", asleep, re.M))
    assert list(rows) == ["rollout", "old log-probabilities", "update", "weight sync"]
    highest = max(map(float, rows.values()))
    assert float(rows["update"]) == highest
    assert f"row 1 (none) fits ({highest} of 79.1 GiB in the update" in asleep
    assert re.search(r"KV cache of [\d,]+ tokens: \d+ sequences of 4,096\n", asleep)
    assert "times are of the update" in asleep.lower()
    assert max(map(len, asleep.splitlines())) <= 112  # flags do not break


def test_what_sleeps_lightly_waits_in_host_memory(asleep: str) -> None:
    assert "host GiB" in asleep
    assert re.search(r"Host memory: 15\.3 GiB per GPU, 122\.1 GiB per server of 8 GPUs;", asleep)


def test_the_head_says_what_a_cycle_has(asleep: str) -> None:
    assert "GRPO · vllm with 0.6 of the GPU, sleep level 1" in asleep


def test_a_narrow_page_keeps_the_phases(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = page(capsys, *GRPO, "rl.sleep_level=2", "--quick")
    block = text[text.index("Phases of") : text.index("Step times are")]
    assert max(map(len, block.splitlines())) <= 60
    assert "mostly" not in block
    assert "rollout" in block


def test_a_rollout_that_is_too_large_decides_and_its_remedies_are_computed(capsys) -> None:
    given = (*GRPO[:2], "rl.gpu_memory_utilization=0.9", "rl.sleep_level=1")
    text = page(capsys, *given, "--quick")
    assert re.search(r"Nothing fits .* is [\d.]+ GiB over the budget in the\s+rollout", text)
    assert "rl.gpu_memory_utilization=0.8" in text
    assert "rl.offload_optimizer=true" in text
    assert "still" not in text[text.index("Other changes") : text.index("Phases of")]


def test_an_engine_that_never_sleeps_is_put_to_sleep(capsys) -> None:
    text = " ".join(page(capsys, *GRPO).split())
    assert "Nothing fits as the job stands" in text
    assert "rl.sleep_level 0 to 2" in text
    kept = " ".join(page(capsys, *GRPO, "rl.sleep_level=0").split())
    assert "rl.sleep_level 0 to" not in kept  # it was given


def test_pairs_are_called_so(capsys) -> None:
    text = page(capsys, "rl.algorithm=dpo", "rl.reference=gpu", "--quick")
    assert "global batch 128 pairs" in " ".join(text.split())
    assert "DPO · reference: gpu" in text


def test_a_job_that_offloads_says_what_the_host_must_hold(capsys) -> None:
    offloads = ("job.optimizer_cpu_offload=true", "job.param_cpu_offload=true")
    job = ("--model", "llama3_70b", "--gpus", "1xH100", "--framework", "deepspeed", "--quick")
    main([*job, *offloads])
    open_text = capsys.readouterr().out
    assert "Host memory: 1314.2 GiB per GPU; job.host_memory_bytes=1TiB has it checked" in open_text
    assert main([*job, *offloads, "job.host_memory_bytes=512GiB"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"host memory: [\d.]+ GiB per GPU, more than its 512\.0 GiB", text)
    assert main([*job, *offloads, "job.host_memory_bytes=2TiB"]) == 0
    assert "within its 2048.0 GiB" in capsys.readouterr().out


def test_a_job_that_offloads_nothing_says_nothing(capsys) -> None:
    text = page(capsys, "--quick", "--recompute", "none")
    assert "Host memory" not in text
    assert "Phases" not in text


def test_a_check_names_the_phase(capsys) -> None:
    given = (*GRPO[:2], "rl.gpu_memory_utilization=0.9", "rl.sleep_level=1")
    assert main(["check", *JOB, *given]) == 1
    assert "85.9 of 79.1 GiB in the rollout, 0.1 % likely" in capsys.readouterr().out
