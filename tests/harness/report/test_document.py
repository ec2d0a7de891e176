"""Markdown that no name can break, and that stays within GitHub's limit."""

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from harness.report.document import (
    SUMMARY_BYTES,
    Document,
    Picture,
    Section,
    Table,
    escaped,
    fenced,
    html,
    markdown,
    summary,
)
from harness.report.facts import Facts
from harness.report.sections import make_document


def document(*sections: Section) -> Document:
    return Document(title="run_1", subtitle="a · b", outcome="2 ok", good=None, sections=sections)


def rows(count: int, width: int = 100) -> Section:
    """The first row is the worst."""
    cells = tuple((f"row {i} " + "x" * width, str(i)) for i in range(count))
    return Section(title="Rows", tables=(Table(columns=("name", "n"), rows=cells),))


def test_a_section_in_full() -> None:
    table = Table(columns=("a|b", "n"), rows=(("x_y", "1"), ("<b>", "—")))
    picture = Picture(name="memory", caption="what it is", svg="<svg/>", narrow_svg="<svg/>")
    one = Section(
        title="One", prose=("a *b*",), tables=(table,), lines=("| raw | <b>",), pictures=(picture,)
    )
    assert markdown(document(one)) == (
        "# run\\_1\n\na · b\n\n**2 ok**\n\n"
        "## One\n\na \\*b\\*\n\n"
        "| a\\|b | n |\n| :-- | --: |\n| x\\_y | 1 |\n| &lt;b\\> | — |\n\n"
        "```text\n| raw | <b>\n```\n\n"
        "![what it is](figures/memory.svg)\n"
    )
    assert "figures/" not in summary(document(one))


def test_folded_sections_are_details() -> None:
    text = markdown(document(Section(title="More", lines=("a",), folded=True)))
    assert "<details><summary>More</summary>\n\n```text\na\n```\n\n</details>\n" in text


@pytest.mark.parametrize("text", ["a\nb", "a | b", "<script>", "`x`", "[a](b)", "# a", "*a*"])
def test_nothing_is_acted_on(text: str) -> None:
    found = escaped(text)
    assert "\n" not in found
    assert not re.search(r"(?<!\\)[|`*_#\[\]<]", found)


def test_a_fence_is_longer_than_what_is_in_it() -> None:
    assert fenced(["a ```` b"]) == "`````text\na ```` b\n`````"
    assert fenced(["a"]) == "```text\na\n```"


def test_a_summary_keeps_the_worst_rows() -> None:
    whole = document(rows(100))
    text = summary(whole, 3000)
    assert len(text.encode()) <= 3000
    kept = [int(n) for n in re.findall(r"\| row (\d+) ", text)]
    assert kept == list(range(len(kept)))
    assert 5 < len(kept) < 100
    assert text.endswith("*The rest is in report.md: this page would be too long.*\n")
    assert text.startswith("# run")


def test_a_section_with_no_room_is_left_out_and_later_ones_are_not() -> None:
    monster = Section(title="Monster", prose=("x" * 5000,))
    lines = Section(title="Lines", lines=tuple(f"{i}" for i in range(2000)), folded=True)
    text = summary(document(monster, lines, Section(title="Small", prose=("here",))), 2000)
    assert "Monster" not in text
    assert "## Small" in text
    assert text.count("<details>") == text.count("</details>") == 1
    assert text.count("```") == 2
    assert len(text.encode()) <= 2000


def test_the_limit_is_githubs() -> None:
    assert SUMMARY_BYTES == 1_048_576
    text = summary(document(rows(30_000)))
    assert SUMMARY_BYTES * 0.4 < len(text.encode()) <= SUMMARY_BYTES
    whole = document(rows(10))
    assert summary(whole) == markdown(whole, pictures=False), "it fits"
    assert summary(document(rows(3)), 50) == summary(document(rows(3)), -10) == "", "no room at all"


pytest.importorskip("jinja2")

EVIL = '"><script>alert(1)</script><img src=http://x/y>'


class Tags(HTMLParser):
    """Tags, attributes, and whether they are closed in their order."""

    VOID = ("meta", "path", "use", "rect", "circle", "br")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


SVG = '<svg viewBox="0 0 1 1"></svg>'


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_nothing_is_loaded_and_all_is_closed(gpu_facts: Facts) -> None:
    picture = Picture(name="x", caption="a picture", svg=SVG, narrow_svg=SVG)
    document = make_document(gpu_facts, ())
    first = document.sections[0]
    section = Section(title=first.title, tables=first.tables, pictures=(picture,))
    tags = parsed(html(replace(document, sections=(section, *document.sections[1:]))))
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "base"}
    for _, attributes in tags.seen:
        assert not {"src", "srcset", "data", "action", "style"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = [a for _, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy"]
    assert (policy["content"] or "").startswith("default-src 'none'")
    assert ("svg", {"viewbox": "0 0 1 1"}) in tags.seen


def test_links_lead_to_sections(gpu_facts: Facts) -> None:
    tags = parsed(html(make_document(gpu_facts, ())))
    anchors = [attributes["id"] for _, attributes in tags.seen if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    links = {attributes["href"] for tag, attributes in tags.seen if tag == "a"}
    assert links
    assert links <= {f"#{anchor}" for anchor in anchors}


def test_text_is_text() -> None:
    section = Section(
        title=EVIL,
        prose=(EVIL,),
        lines=(EVIL,),
        tables=(Table(columns=(EVIL,), rows=((EVIL,),)),),
        pictures=(Picture(name="x", caption=EVIL, svg="<svg></svg>", narrow_svg=""),),
    )
    text = html(Document(title=EVIL, subtitle=EVIL, outcome=EVIL, good=None, sections=(section,)))
    assert "<script" not in text
    assert not re.search(r"<img", text)
    parsed(text)


@pytest.mark.parametrize(("good", "kind"), [(True, "good"), (False, "bad"), (None, "")])
def test_the_outcome_has_a_colour_of_its_own(good: bool | None, kind: str) -> None:
    text = html(Document(title="t", subtitle="s", outcome="it is so", good=good, sections=()))
    assert f'<p class="outcome {kind}">it is so</p>' in text
