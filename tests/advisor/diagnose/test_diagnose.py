"""Known failures are found in logs, and nothing else is."""

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.base.configuration import load_yaml
from advisor.base.lines import BLOCK_BYTES
from advisor.base.units import GIB, MIB
from advisor.diagnose.catalog import EVIDENCE, Case, Failure, load_catalog
from advisor.diagnose.meaning import meaning_of
from advisor.diagnose.out_of_memory import verdict_of
from advisor.diagnose.scan import LINE_BYTES, WINDOW_LINES, Finding, scan
from advisor.frameworks.megatron.rules.engine import RULES
from advisor.report.diagnosis_page import diagnosis_page
from advisor.report.text import plain_lines

LOGS = Path(__file__).parent / "logs"
LAUNCHERS = ("elastic_child_failed", "launcher_of_accelerate")
FAILURES = [one for one in load_catalog() if not one.general]
CASES = [pytest.param(failure, case, id=case.id) for failure in FAILURES for case in failure.cases]
CLEAN = (LOGS / "megatron_clean.log").read_text(encoding="utf-8")

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 3 has a total "
    "capacity of 79.10 GiB of which {free} is free. Including non-PyTorch memory, this process has "
    "77.58 GiB memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and "
    "{cached} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def findings(source: Path | str) -> tuple[Finding, ...]:
    return scan(source).findings


def render(findings: Sequence[Finding], num_lines: int = 0) -> str:
    """The page as a file gets it."""
    found = replace(scan(""), findings=tuple(findings), num_lines=num_lines)
    return "\n".join(plain_lines(diagnosis_page(found)))


def number(finding: Finding, name: str) -> float | None:
    """The value of one reading, or None where the text does not have it."""
    return next((item.value for item in finding.numbers if item.name == name), None)


OTHER = "ValueError: CUDA graphs not supported with CPU offloading."


def one(source: Path | str) -> Finding:
    (finding,) = findings(source)
    return finding


def case_of(case_id: str) -> Case:
    return next(case for failure in FAILURES for case in failure.cases if case.id == case_id)


# --- the catalogue -------------------------------------------------------------------------------


def test_every_case_is_complete_and_its_id_unique() -> None:
    cases = [case for failure in FAILURES for case in failure.cases]
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids)
    assert all(
        text.strip()
        for case in cases
        for text in (case.message, case.context, case.cause, case.fix, case.source, case.framework)
    )
    assert {case.evidence for case in cases} <= EVIDENCE.keys()
    assert len({failure.id for failure in FAILURES}) == len(FAILURES)


def test_the_catalogue_holds_all_collected_rows() -> None:
    """101 texts were collected first, then more; those seen by probing or in sources came later."""
    collected = [c.id for failure in FAILURES for c in failure.cases if c.id.startswith("F")]
    assert len([case for case in collected if case < "F2"]) == 101
    assert len(collected) == 136


@pytest.mark.parametrize(("failure", "case"), CASES)
def test_a_case_is_its_own_failure_and_no_other(failure: Failure, case: Case) -> None:
    """Alone, deep in the log of a rank, and on the page. A template may hit another failure's text
    only where that failure is a special case of it."""
    assert one(case.message).failure.id == failure.id
    special = {(one, "host_out_of_memory") for one in (*LAUNCHERS, "deepspeed_worker_ended")}
    special |= {
        ("cuda_out_of_memory", "cuda_out_of_memory_graph_pools"),
        ("cuda_out_of_memory", "cuda_out_of_memory_fraction"),
        ("deepspeed_unknown_key", "deepspeed_partial_offload"),
        ("state_dict_mismatch", "fsdp2_full_state_dict"),
        ("compile_refuses_region", "data_dependent"),
        ("dcp_missing_key", "dcp_extra_state"),
        ("deepspeed_cpu_adam", "deepspeed_async_io"),
        ("gpu_hardware_error", "xid_of_program"),
        ("hf_nan", "loss_zero_grad_nan"),
    }
    text = " ".join(case.message.split())
    hits = {f.id for f in FAILURES for t in f.templates if t.regex.search(text)} - {failure.id}
    assert {(hit, failure.id) for hit in hits} <= special
    lines = [f"[rank7]: {line}" for line in case.message.splitlines()]
    text = CLEAN + "\n".join(lines) + "\n" + CLEAN
    found = one(text)
    assert found.failure.id == failure.id
    assert CLEAN.count("\n") < found.line_number <= CLEAN.count("\n") + len(lines)
    assert found.rank == 7
    page = render(findings(case.message))
    assert failure.title in " ".join(page.split())
    if len(failure.cases) == 1:
        for text in (case.cause, case.fix, EVIDENCE[case.evidence], case.source):
            assert " ".join(text.split()) in " ".join(page.split())
    assert max(len(line) for line in page.splitlines()) <= 100


def errors(name: str) -> list[Any]:
    """Recorded errors; pytest shows what each is."""
    values = load_yaml(LOGS / name).values["errors"]
    return [pytest.param(*one.values(), id=str(next(iter(one.values())))) for one in values]


@pytest.mark.parametrize(("ids", "log"), [*errors("raised.yaml"), *errors("seen_before.yaml")])
def test_what_frameworks_raise_is_known_and_the_cause_comes_first(ids: list[str], log: str) -> None:
    assert [found.failure.id for found in findings(log)] == ids


def test_an_unlisted_error_is_named_with_its_frame_and_without_a_remedy() -> None:
    """Not where a listed one explains it, Python ignored it, or the run went on."""
    frame = 'Traceback (most recent call last):\n  File "/a/train.py", line 1, in main\n    f(x)\n'
    page = render(findings(frame + "my.OddError: no luck\n"))
    assert "my.OddError: no luck" in page
    assert "/a/train.py in main: f(x)" in page
    assert "fix" not in page
    assert one(frame + f"my.OddError: no luck\n{OTHER}").failure.cases
    assert findings("Exception ignored in: <f>\n" + frame + "OddError: no luck\n") == ()
    steps = "iteration 7/ 9 |\niteration 8/ 9 |\n"
    assert findings(frame + "OddError: no luck\n" + steps) == ()


@pytest.mark.parametrize(("rule", "log"), errors("rules.yaml"))
def test_what_a_rule_stands_for_is_known_as_that_rule(rule: str, log: str) -> None:
    found = one(log)
    assert f"megatron.{rule}" in found.failure.rules
    assert found.failure.title
    assert all(case.fix and case.source for case in found.failure.cases)


def test_every_refusal_of_megatron_has_its_text_in_the_catalogue() -> None:
    """Without: refusals without a text of their own, hangs, and what only main raises."""
    known = {rule.partition(".")[2] for failure in FAILURES for rule in failure.rules}
    assert {name for name, rule in RULES.items() if rule.verdict.illegal} - known == {
        *("uniform_without_layers", "mlp_recompute_with_bias", "mhc_layer_number", "mhc_with_mlp"),
        *("nemo_without_hierarchy", "nemo_distribute"),
        *("adapters_layernorm", "adapters_layernorm_latent"),
    }


# --- what must not be found ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["megatron_clean.log", "other_frameworks_clean.log"])
def test_a_clean_log_has_no_known_failure(name: str) -> None:
    diagnosis = scan(LOGS / name)
    assert diagnosis.findings == ()
    assert diagnosis.num_lines == (LOGS / name).read_bytes().count(b"\n")


@pytest.mark.parametrize(
    "line",
    [
        '    raise ValueError("CUDA graphs not supported with CPU offloading.")',
        "                f'CPU offloading can be done only for layers less than {n}'",
        "notCUDA out of memory",
        " | lm loss: 8.1E+00 | grad norm: 3.210 | number of nan iterations:   0 |",
        "AssertionError",
        "",
    ],
)
def test_a_source_line_or_half_a_text_is_no_failure(line: str) -> None:
    assert findings(line) == ()


def test_nothing_found_says_how_much_was_read() -> None:
    assert render(scan("a\nb\n").findings, 1234567) == "no known failure in 1,234,567 lines"


# --- positions, ranks, order ---------------------------------------------------------------------


def test_first_occurrence_and_all_ranks_are_kept() -> None:
    text = f"start\n[rank3]: {OTHER}\n[rank1]: {OTHER}\n[rank3]: {OTHER}\n"
    finding = one(text)
    assert (finding.line_number, finding.rank) == (2, 3)
    assert (finding.occurrences, finding.ranks) == (3, (1, 3))
    assert render([finding]).startswith("line 2, rank 3 (3 times, ranks 1, 3): CUDA graphs")


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("[rank12]: ", 12),
        ("[default5]:", 5),
        ("[Rank 0] ", 0),
        ("7: ", 7),
        ("1: [rank9]: ", 9),
        ("\x1b[31m[rank2]: ", 2),
        ("2026-01-15 10:20:31,123 ERROR ", None),
    ],
)
def test_rank_prefixes(prefix: str, rank: int | None) -> None:
    assert one(prefix + OTHER).rank == rank


def test_errors_come_before_warnings_and_then_in_order() -> None:
    warning = case_of("F019").message
    text = "\n".join([warning, "later", case_of("F161").message, OTHER])
    found = findings(text)
    assert [item.line_number for item in found] == [3, 4, 1]
    assert [item.failure.severity for item in found][-1] == "warning"
    assert "warning: use_reentrant" in render(found)


def test_the_excerpt_begins_with_the_exception_and_is_short() -> None:
    finding = one(f"12:01 worker said: {OTHER} and more")
    assert finding.excerpt == OTHER
    assert len(one(OTHER + "x" * 5000).excerpt) <= 400


# --- messages of several lines -------------------------------------------------------------------


def test_a_message_of_several_lines_is_read_across_another_ranks_lines() -> None:
    text = (
        "[rank0]: torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: A different "
        "number of tensors was saved during the original forward and recomputation.\n"
        "[rank1]: Traceback (most recent call last):\n"
        "[rank0]: Number of tensors saved during forward: 2038\n"
        "[rank1]: Number of tensors saved during forward: 9999\n"
        "[rank0]: Number of tensors saved during recomputation: 1638.\n"
    )
    finding = one(text)
    assert number(finding, "saved_tensors") == 2038
    assert number(finding, "recomputed_tensors") == 1638
    assert "2038 tensors in the forward pass, 1638 in the replay" in render([finding])


def test_a_message_wrapped_by_a_console_is_read() -> None:
    words = OOM.format(tried="1.96 GiB", free="1.51 GiB", allocated="73.90 GiB", cached="1.12 GiB")
    text = words.replace("capacity of ", "capacity of\n   ").replace("is free. ", "is free.\n")
    assert number(one(text), "capacity_bytes") == round(79.10 * GIB)


def test_the_window_ends() -> None:
    filler = "filler\n" * WINDOW_LINES
    head = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
    tail = "Number of tensors saved during forward: 1\n"
    assert number(one(head + filler + tail), "tried_bytes") == 2 * GIB
    echo = "assert self.offload_modules is not None and len(self.offload_modules) > 0\n"
    assert findings(echo + filler + "AssertionError\n") == ()
    assert len(findings(echo + "  ^^^^^^^\n" + "AssertionError\n")) == 1


# --- big and broken logs -------------------------------------------------------------------------


def test_a_failure_between_two_blocks_is_found_with_its_line(tmp_path: Path) -> None:
    line = "x" * 99 + "\n"
    before = BLOCK_BYTES // len(line)  # the failure's line is cut by the block's end
    log = tmp_path / "big.log"
    log.write_text(line * before + OTHER + "\n" + line * before, encoding="utf-8")
    diagnosis = scan(log)
    assert [item.line_number for item in diagnosis.findings] == [before + 1]
    assert diagnosis.num_lines == 2 * before + 1


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    log = tmp_path / "bars.log"
    bar = b"\r 50%|#####     | 10/20"
    log.write_bytes(bar * (3 * BLOCK_BYTES // len(bar)) + b"\r" + OTHER.encode())
    diagnosis = scan(log)
    assert diagnosis.num_lines == 1
    assert len(diagnosis.findings[0].excerpt) < LINE_BYTES
    garbage = bytes(range(256)) * 64
    log.write_bytes(garbage + b"\xff\xfe\n" + OTHER.encode() + b"\r\n" + garbage)
    assert one(log).failure.id == "megatron_graphs_refuse_offload", "read over"


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OTHER.encode())))
    assert one(Path("-")).line_number == 1


@pytest.mark.slow
def test_a_big_log_streams(tmp_path: Path) -> None:
    """48 MB in a process of its own take far less memory than the log."""
    log = tmp_path / "big.log"
    repeat = 48 * 10**6 // len(CLEAN)
    with log.open("w", encoding="utf-8") as file:
        for _ in range(repeat):
            file.write(CLEAN)
        file.write(OTHER + "\n")
    code = (
        "import resource, sys; from pathlib import Path; from advisor.diagnose.scan import scan\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = scan(Path(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, found.num_lines,"
        " len(found.findings))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, str(log)], timeout=600)
    grown_kib, num_lines, found = (int(word) for word in printed.split())
    assert grown_kib * 1024 < 24 * MIB
    assert (num_lines, found) == (repeat * CLEAN.count("\n") + 1, 1)


# --- what the numbers say ------------------------------------------------------------------------


def oom(tried: str, free: str, allocated: str, cached: str) -> Finding:
    return one(OOM.format(tried=tried, free=free, allocated=allocated, cached=cached))


def test_oom_text_is_read() -> None:
    finding = oom("1.96 GiB", "687.12 MiB", "73.90 GiB", "512 bytes")
    assert number(finding, "gpu") == 3
    assert number(finding, "tried_bytes") == round(1.96 * GIB)
    assert number(finding, "free_bytes") == round(687.12 * MIB)
    assert number(finding, "reserved_unallocated_bytes") == 512
    assert number(finding, "process_bytes") == round(77.58 * GIB)
    assert number(finding, "nothing") is None


@pytest.mark.parametrize(
    ("numbers", "cured", "word"),
    [
        (("4.00 GiB", "1.00 GiB", "40.00 GiB", "30.00 GiB"), True, "Fragmentation"),
        (("1.00 GiB", "0.50 GiB", "73.00 GiB", "2.00 GiB"), True, "At the edge"),
        (("1.96 GiB", "1.51 GiB", "73.90 GiB", "1.12 GiB"), False, "leave only 686.08 MiB"),
        (("4.00 GiB", "1.00 GiB", "70.00 GiB", "1.50 GiB"), False, "1.50 GiB are missing"),
        (("20.00 GiB", "0 bytes", "60.00 GiB", "18.00 GiB"), False, "exceed the device by"),
    ],
)
def test_oom_verdicts(numbers: tuple[str, str, str, str], cured: bool, word: str) -> None:
    verdict = verdict_of(oom(*numbers), "")
    assert word in verdict.means
    assert ("expandable_segments:True" in " ".join(verdict.fix)) == cured


def test_oom_of_older_releases_and_without_numbers() -> None:
    misspelt = verdict_of(one(case_of("F162").message), "")  # torch 2.1
    assert misspelt.owner == "fragmentation"
    assert "10.61 GiB reserved but unallocated" in misspelt.means
    old = verdict_of(one(case_of("F012").message), "")  # torch 1 counts the cache from reserved
    assert "1.15 GiB reserved but unallocated" in old.means
    bare = verdict_of(one("torch.OutOfMemoryError: CUDA out of memory"), "")
    assert (bare.owner, bare.means) == ("unknown", "")
    assert "no traceback" in bare.fix[0]


def test_oom_with_graph_pools() -> None:
    text = OOM.format(tried="2.00 GiB", free="1.00 GiB", allocated="70.00 GiB", cached="512.00 MiB")
    pooled = text.replace(
        "PyTorch, and", "PyTorch, with 9.50 GiB allocated in private pools (e.g., CUDA Graphs), and"
    )
    finding = one(pooled)
    assert finding.failure.id == "cuda_out_of_memory_graph_pools"
    verdict = verdict_of(finding, "")
    assert "9.50 GiB of the tensors sit in pools of CUDA graphs" in verdict.means
    assert "capture less" in verdict.fix[1]


def test_oom_shows_two_cases_of_its_verdict_at_most() -> None:
    page = render([oom("4.00 GiB", "1.00 GiB", "40.00 GiB", "30.00 GiB")])
    assert "half of the memory is reserved but unallocated" in page
    assert "a real shortage, not fragmentation" not in page
    assert page.count("seen in") <= 2


METADATA = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the "
    "following tensors have different metadata than during the forward pass.\n"
    "tensor at position 12:\n"
    "saved metadata: {{'shape': torch.Size([{0}]), 'dtype': torch.{1}, 'device': device(type='cuda'"
    ", index=0)}}\n"
    "recomputed metadata: {{'shape': torch.Size([{2}]), 'dtype': torch.{3}, 'device': device("
    "type='cuda', index=0)}}.\n"
)


@pytest.mark.parametrize(
    ("saved", "again", "when", "word"),
    [
        (("2, 1024, 8", "bfloat16"), ("2, 2048, 8", "bfloat16"), "longer", "2 times as long"),
        (("1024", "bfloat16"), ("0", "bfloat16"), "empty", "ZeRO-3"),
        (("8, 64", "bfloat16"), ("8, 64", "float32"), "dtype", "autocast"),
        (("1021, 64", "bfloat16"), ("1024, 64", "bfloat16"), "rows", "router"),
        (("8, 64", "bfloat16"), ("4, 2, 64", "bfloat16"), "", "another code path"),
    ],
)
def test_metadata_verdicts(saved, again, when, word) -> None:
    meaning = meaning_of(one(METADATA.format(*saved, *again)))
    assert meaning.when == when
    assert word in meaning.text


def test_metadata_picks_the_case_that_the_shapes_name() -> None:
    page = render(findings(METADATA.format("1024", "bfloat16", "0", "bfloat16")))
    assert "saves a gathered frozen parameter" in page
    assert "key/value cache" not in page


def test_versions_and_module_names_are_read() -> None:
    assert "Transformer Engine 2.4.0 is installed" in render(findings(case_of("F091").message))
    assert "does not accept {'bogus'}." in render(findings(case_of("M003").message))
    assert "from 1 to 8" in render(findings(case_of("F112").message))
    text = "A different number of tensors was saved during the original forward and recomputation."
    assert meaning_of(one(text)).text == "", "without its numbers it is left out"
