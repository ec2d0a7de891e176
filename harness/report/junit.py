"""`junit.xml`: one test case for each candidate and metric, in the gate's order."""

import re
from collections import Counter
from typing import Final
from xml.etree import ElementTree

from harness.judge.comparison import Comparison
from harness.judge.render import noted_rows, row_line
from harness.judge.verdict import Verdict

_TAGS: Final = {
    Verdict.REGRESSION: "failure",
    Verdict.FAILED: "error",
    Verdict.UNSTABLE: "skipped",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.ENVIRONMENT: "skipped",
    Verdict.VANISHED: "skipped",
    Verdict.APPEARED: "skipped",
    Verdict.SKIPPED: "skipped",
    Verdict.UNJUDGED: "skipped",
}
"""What a verdict is to a test runner; PASS and STALE pass. "skipped" is all that is no verdict."""
_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, escaped or not; a log's last words may have them."""
_WHOLE: Final = "run"


def junit(comparison: Comparison, name: str) -> str:
    """The comparison as JUnit XML; the message of a case is the gate's own line."""
    suite = ElementTree.Element("testsuite", name=_clean(name))
    seen: Counter[tuple[str, str]] = Counter()
    for row, notes in noted_rows(comparison):
        line, subject = row_line(row), (_clean(row.label), _clean(row.metric or _WHOLE))
        seen[subject] += 1  # repeats that failed have one case each
        again = f" {seen[subject]}" if seen[subject] > 1 else ""
        case = ElementTree.SubElement(
            suite, "testcase", classname=subject[0], name=subject[1] + again
        )
        tag = _TAGS.get(row.verdict)
        if tag is None:
            ElementTree.SubElement(case, "system-out").text = _clean("\n".join([line, *notes]))
            continue
        found = ElementTree.SubElement(case, tag, message=_clean(line), type=str(row.verdict))
        found.text = _clean("\n".join([line, *notes]))
    counts = [_TAGS.get(row.verdict) for row in comparison.rows]
    suite.attrib |= {"tests": str(len(counts))} | {
        plural: str(counts.count(tag))
        for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    suites = ElementTree.Element("testsuites", suite.attrib)
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
