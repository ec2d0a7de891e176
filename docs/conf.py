"""Sphinx reads this: `make docs` builds the site into build/docs, without the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = html_title = "recompute-advisor"
extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "inline_svg",
]
exclude_patterns = ["_ext"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["scrolled.js", "filter.js"]
html_copy_source = False
html_show_copyright = False
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
myst_heading_anchors = 3
smartquotes = False
nitpicky = True
