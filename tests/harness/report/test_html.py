"""One file that loads nothing, and in which nothing can be injected."""

import re
from html.parser import HTMLParser

import pytest

from harness.report.document import Document, Picture, Section, Table
from harness.report.facts import Facts
from harness.report.sections import make_document

pytest.importorskip("jinja2")

from harness.report.html import html

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
    tags = parsed(
        html(
            Document(
                title="t",
                subtitle="s",
                outcome="o",
                good=True,
                sections=(section, *document.sections[1:]),
            )
        )
    )
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
