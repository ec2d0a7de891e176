"""What a file for another tool says of where it comes from."""

from msgspec import Struct

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.distribution import installed_version
from advisor.report.figures.titles import row_title

PREDICTED = "predicted before any run, not measured"


class ExportOrigin(Struct, frozen=True, kw_only=True):
    """What asked for the file, the row in words, and the advisor's version."""

    request: str
    row: str
    version: str

    @property
    def by_name(self) -> dict[str, str]:
        """All of it, by name."""
        return {
            "what": PREDICTED,
            "request": self.request,
            "row": self.row,
            "written by": f"advise {self.version}",
        }


def origin_of(advice: Answer, row: RankedEvaluation, asked: str) -> ExportOrigin:
    """`asked`: the command or call."""
    return ExportOrigin(
        request=asked, row=row_title(advice, row).replace("\n", "; "), version=installed_version()
    )
