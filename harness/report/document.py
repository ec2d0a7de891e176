"""What a report consists of, whatever it is written as: sections of prose, tables and pictures."""

from msgspec import Struct


class Table(Struct, frozen=True, kw_only=True):
    """Rows of text, the most important first; the first `left` columns are words, not numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)


class Picture(Struct, frozen=True, kw_only=True):
    """A figure: its file's name without suffix, what it shows, and the SVG itself, as wide as a
    desktop's page and as a phone's."""

    name: str
    caption: str
    svg: str
    narrow_svg: str


class Section(Struct, frozen=True, kw_only=True):
    """One heading and what is below it, in the order of the fields.

    lines: shown as they are, in a typewriter's letters. folded: closed until it is opened.
    """

    title: str
    prose: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Its name in a link."""
        return "-".join(self.title.lower().replace(",", "").split())


class Document(Struct, frozen=True, kw_only=True):
    """A report: title, one line that says what it is of, the outcome, sections.

    good: whether the outcome is one; None where nothing was judged.
    """

    title: str
    subtitle: str
    outcome: str
    good: bool | None
    sections: tuple[Section, ...]
