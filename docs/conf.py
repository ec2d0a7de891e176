"""Sphinx reads this: `make docs` builds the site into build/docs, without the network."""

import sys
from pathlib import Path

import advisor.request.request
from advisor.models.presets import ModelSource

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# An annotation that is imported for type checking alone.
advisor.request.request.ModelSource = ModelSource  # type: ignore[attr-defined]

project = html_title = "recompute-advisor"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
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
python_use_unqualified_type_names = True
nitpicky = True
# Types of the standard library and of our own modules: their pages would be on the network, or
# there are none.
nitpick_ignore_regex = [("py:(class|obj|data|exc)", r".*")]
