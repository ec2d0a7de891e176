"""`--explain`: lines, subtotals, and totals that equal the headline numbers."""

import re

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.report.explain_page import explanation, memory_table, stage_table, time_table
from advisor.report.text import plain_lines


def test_the_whole_explanation_fits_100_columns(tight: Answer, explained: tuple) -> None:
    _, memory, time = explained
    name, shape = "a very long name of a tensor " * 3, "[" + "1024 / cp / tp, " * 5 + "]"
    long = replace(memory[0], name=name, shape=shape)
    text = "\n".join(
        plain_lines(explanation(tight.candidates[0].evaluation, "Row 1", (long, *memory[1:]), time))
    )
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith("\nRow 1, selective:mlp: memory of the worst rank (stage 0) at its peak")
    assert "Time of one step, expected between 8.556 and 10.044 s" in text


def test_memory_ends_in_the_reserved_peak(explained: tuple) -> None:
    evaluation, memory, _ = explained
    table = plain_lines(memory_table(evaluation, memory))
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table]
    assert ["total: the reserved peak", "66.000", "100.0 %"] in lines
    first = lines.index(["activations", "21.000", "31.8 %"]) + 1
    assert [line[0] for line in lines[first : first + 2]] == [
        "linear_qkv input",
        "linear_fc1 input",
    ]
    assert lines[first][1:] == ["[1024, 1, 8192]", "14.000", "21.2 %", "4 x 3.50 GiB"]
    heads = " ".join(line.split()[0] for line in table if re.match(r"  [a-z]+ ", line))
    assert heads == "tensor weights gradients optimizer activations transient overhead"
    assert "\n".join(table).count("[1] megatron-core 0.16.1 param_and_grad_buffer.py") == 1
    assert "\n".join(table).count("[2] measured") == 1


def test_subtotals_sum_to_the_total(explained: tuple) -> None:
    evaluation, memory, time = explained
    for table in (
        plain_lines(memory_table(evaluation, memory)),
        plain_lines(time_table(evaluation, time)),
    ):
        heads = [line for line in table[1:] if re.match(r"  [a-z_]+ ", line)]
        numbers = [float(re.findall(r"\d+\.\d+", line)[0]) for line in heads]
        total = next(line for line in table if line.startswith("  total: "))
        assert sum(numbers) == pytest.approx(float(re.findall(r"\d+\.\d+", total)[0]))


def test_time_ends_in_the_step(explained: tuple) -> None:
    evaluation, _, time = explained
    table = plain_lines(time_table(evaluation, time))
    assert table[-1].split() == ["total:", "the", "step", "9300.00", "100.0", "%"]
    assert table[2].split() == ["linear_fc1", "1500.00", "16.1", "%", "compute"]


def test_what_does_not_add_up_is_refused(explained: tuple) -> None:
    evaluation, memory, time = explained
    with pytest.raises(AssertionError, match="explained"):
        memory_table(evaluation, memory[1:])
    with pytest.raises(AssertionError, match="explained"):
        time_table(evaluation, time[1:])


def test_stages_show_both_peaks_and_what_is_in_flight(explained: tuple) -> None:
    evaluation, *_ = explained
    head, *rows = plain_lines(stage_table(evaluation.stages))
    assert head.split()[-4:] == ["reserved", "allocated", "in", "flight"]
    assert " ".join(rows[0].split()) == "0 9.0 18.0 13.0 21.0 2.0 3.0 66.0 63.0 4.6"
    assert len(rows) == 4
