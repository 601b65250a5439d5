"""The site: `make docs` builds it, offline and with warnings as errors."""

from importlib.metadata import version as version_of

project = "distmetrics"
author = "the distmetrics authors"
project_copyright = "the distmetrics authors, Apache-2.0"
version = release = version_of("torch-distmetrics")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
html_theme = "furo"
html_title = f"distmetrics {release}"
exclude_patterns = ["_build"]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
