"""JUnit XML, for whatever has cases that pass, fail or are skipped."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple
from xml.etree import ElementTree

_NO_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, escaped or not; a log's last words may have them."""


class Case(NamedTuple):
    """A case. tag: failure, error or skipped, empty of what passes; type: the kind of it."""

    subject: str
    name: str
    message: str
    tag: str = ""
    type: str = ""
    text: str = ""


def junit(name: str, cases: Iterable[Case]) -> str:
    """Cases as one suite; of the same name they are numbered."""
    suite = ElementTree.Element("testsuite", name=_clean(name))
    seen: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    for case in cases:
        subject = _clean(case.subject), _clean(case.name)
        seen[subject] += 1
        counts[case.tag] += 1
        again = f" {seen[subject]}" if seen[subject] > 1 else ""
        named = {"classname": subject[0], "name": subject[1] + again}
        one = ElementTree.SubElement(suite, "testcase", named)
        why = {"message": _clean(case.message), "type": case.type} if case.tag else {}
        found = ElementTree.SubElement(one, case.tag or "system-out", why)
        found.text = _clean(case.text or case.message)
    suite.set("tests", str(counts.total()))
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(counts[tag]))
    suites = ElementTree.Element("testsuites", suite.attrib)
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
