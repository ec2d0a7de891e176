"""Parts of the drawings: text, bars and boxes in colours that follow the page.

A page of the site sets ``--draw-…`` (docs/_static/custom.css); alone, a drawing follows the
system's light or dark. What is hatched is told by its pattern as well as by its colour.
"""

from html import escape
from typing import Final

STYLE: Final = """\
<style>
.drawing { --fg: var(--draw-fg, #1b1f24); --muted: var(--draw-muted, #59636e);
  --line: var(--draw-line, #d1d9e0); --kept: var(--draw-kept, #0969da);
  --again: var(--draw-again, #bc4c00);
  --box: var(--draw-box, #f6f8fa); --bg: var(--draw-bg, #ffffff);
  font-family: system-ui, sans-serif; font-size: 13px; }
@media (prefers-color-scheme: dark) { .drawing { --fg: var(--draw-fg, #e6edf3);
  --muted: var(--draw-muted, #9198a1); --line: var(--draw-line, #3d444d);
  --kept: var(--draw-kept, #4493f8); --again: var(--draw-again, #f0883e);
  --box: var(--draw-box, #151b23); --bg: var(--draw-bg, #0d1117); } }
.drawing text { fill: var(--fg); } .drawing .muted { fill: var(--muted); }
.drawing .bold { font-weight: 600; } .drawing .mono { font-family: ui-monospace, monospace; }
.drawing .rule { stroke: var(--line); } .drawing .kept { fill: var(--kept); }
.drawing .again { fill: url(#hatch); stroke: var(--again); }
.drawing .ground { fill: var(--bg); }
.drawing .box { fill: var(--box); stroke: var(--line); }
.drawing .arrow { stroke: var(--muted); fill: none; }
 .drawing .leaf { fill: var(--box); stroke: var(--kept); stroke-width: 1.5; }
</style>
<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
  patternTransform="rotate(45)"><rect width="2" height="6" style="fill: var(--again)"/></pattern>
</defs>"""


def text(x: float, y: float, words: str, classes: str = "", anchor: str = "start") -> str:
    """Words whose baseline begins (or, with another anchor, ends) at a point."""
    return (
        f'<text x="{x:g}" y="{y:g}" class="{classes}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, classes: str) -> str:
    """A rectangle by its upper left corner."""
    size = f'width="{width:.1f}" height="{height:g}" rx="3"'
    return f'<rect x="{x:g}" y="{y:g}" {size} class="{classes}"/>'


def rule(x: float, y: float, right: float) -> str:
    """A horizontal line."""
    return f'<line x1="{x:g}" y1="{y:g}" x2="{right:g}" y2="{y:g}" class="rule"/>'


def drawing(width: int, height: int, title: str, description: str, parts: list[str]) -> str:
    """A whole picture, which says in words what it shows."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' class="drawing" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            STYLE,
            f'<rect width="{width}" height="{height}" class="ground"/>',
            *parts,
            "</svg>\n",
        ]
    )
