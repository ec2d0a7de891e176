"""Sphinx reads this: `make docs` builds the site into build/docs, without the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "recompute-advisor"
html_title = "recompute-advisor"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "inline_svg"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 3
nitpicky = True
