"""`report.html`: one file that loads nothing, for any screen, light or dark."""

from pathlib import Path

from harness.report.document import Document

_TEMPLATES = Path(__file__).parent / "templates"


def html(document: Document) -> str:
    """The report as a page, pictures inside; ImportError where jinja2 is not installed.

    All text is escaped. The pictures' SVG, which we drew ourselves, goes in as it is.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(document=document) + "\n"
