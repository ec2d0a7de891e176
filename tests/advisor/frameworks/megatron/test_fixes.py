"""A fix, done as it is printed, ends what it is about and begins nothing else."""

import re
from collections.abc import Iterator

import pytest

from advisor.base.rule import Finding
from advisor.cli.main import main
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import MEGATRON_BRIDGE, MEGATRON_CORE, NEMO, Revision
from advisor.frameworks.megatron.rules.engine import find
from advisor.frameworks.megatron.rules.fixes import as_keys, in_options
from scripts.write_docs.megatron_rules_page import mended
from tests.advisor.frameworks.megatron.configuration_cases import BASE, CASES, recorded
from tests.advisor.tables import tables

TABLES = tables(__file__)

TRIED = (*CASES, *recorded("fixed_cases"))
REVISIONS = (*MEGATRON_CORE, *MEGATRON_BRIDGE, *NEMO)


def _illegal(raw: RawSettings, revision: Revision) -> set[str]:
    return {found.rule for found in find(raw, revision) if found.verdict.illegal}


def _ways(raw: RawSettings, revision: Revision) -> Iterator[tuple[Finding, str]]:
    for found in find(raw, revision):
        yield from ((found, way) for way in found.change.split(", or ") if "[" in way)


@pytest.mark.parametrize("revision", REVISIONS, ids=lambda r: f"{r.framework}-{r.version}")
def test_every_way_of_a_fix_ends_the_finding_and_begins_no_other(revision: Revision) -> None:
    tried = 0
    for case in TRIED:
        raw = RawSettings(**{**BASE, **case})
        before = _illegal(raw, revision)
        for found, way in _ways(raw, revision):
            for changed, release in [mended(raw, way, revision)]:
                about = case, found.rule, way
                after = find(changed, release)
                assert found.reason not in {one.reason for one in after}, about
                # the next field that the release lacks, and what only then is asked
                if found.rule != "unknown_field":
                    assert found.rule not in {one.rule for one in after}, about
                    assert release is not revision or not _illegal(changed, revision) - before, (
                        about
                    )
                tried += 1
    assert tried > 50


def test_enough_rules_have_such_a_fix() -> None:
    rules = {
        found.rule
        for revision in REVISIONS
        for case in TRIED
        for found, _ in _ways(RawSettings(**{**BASE, **case}), revision)
    }
    assert len(rules) >= 45


def test_no_mark_is_printed() -> None:
    for revision in REVISIONS:
        for case in TRIED:
            for found in find(RawSettings(**{**BASE, **case}), revision):
                assert "[" not in found.fix, found
                assert "[" not in as_keys(found.change, revision), found


def test_both_spellings() -> None:
    newest, old = MEGATRON_CORE[-1], MEGATRON_CORE[-4]
    change = "[cuda_graph_modules=attn moe_router] and [delay_wgrad_compute], or [>=0.18]"
    assert in_options(change, newest) == (
        "use cuda_graph_modules attn moe_router and drop delay_wgrad_compute, or use megatron-core "
        "0.18 or newer"
    )
    assert in_options("[cuda_graph_modules=attn]", old) == "use cuda_graph_scope attn"
    assert in_options("[add_bias_linear=false]", newest) == "turn add_bias_linear off"
    assert as_keys(change, newest) == (
        "job.cuda_graph_modules=attn,moe_router layout.delay_wgrad_compute=false, or "
        "--framework-version 0.18"
    )
    assert as_keys("[>=0.18]", MEGATRON_BRIDGE[0]) == "--framework-version 0.5"
    assert as_keys("[cuda_graph_modules]", newest) == "job.cuda_graph_modules="
    assert as_keys("[mtp_num_layers]", newest) == "model.mtp_num_layers=null"
    assert as_keys("[moe_input_jitter_eps]", newest) == "drop moe_input_jitter_eps"
    assert as_keys("drop core_attn", newest) == "drop core_attn"


@pytest.mark.parametrize(
    "asked",
    TABLES["test_the_keys_of_a_refusal_typed_as_printed_give_an_answer"],
)
def test_the_keys_of_a_refusal_typed_as_printed_give_an_answer(asked: str, capsys) -> None:
    """The last of a KEY counts. Where something else stands against the job as well, that is said
    next, and ended in the same way."""
    reasons = set()
    lines = [asked]
    for _ in range(4):
        following = []
        for line in lines:
            if main([*line.split(), "--format", "csv", "--top", "1", "--quick"]) in (0, 1):
                capsys.readouterr()
                continue
            reason, _, fix = capsys.readouterr().err.strip().rpartition("; ")
            assert reason not in reasons, reason
            reasons.add(reason)
            ways = [re.sub(r" \(.*\)", "", way) for way in fix.split(", or ")]
            assert all(re.search(r"\w+\.\w+=|--framework-version", way) for way in ways), fix
            following += [f"{line} {way}" for way in ways]
        lines = following
    assert reasons
    assert not lines
