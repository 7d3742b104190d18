"""The documentation as a site: `make docs`. The sources are the Markdown pages, which a forge shows as well."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # this checkout's fedmc, wherever the command runs

import fedmc  # noqa: E402
from docs.site_parts import numpydoc, toctrees  # noqa: E402
from docs.site_parts.notebook import NotebookParser  # noqa: E402

project, author, copyright = "fedmc", "The fedmc contributors", "The fedmc contributors"
version = release = fedmc.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "README"
exclude_patterns = ["_build", "site_parts"]
nitpicky = True
# Types of other libraries, and of fedmc's inside: the site has no page about them, and the build fetches no inventory.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|scipy|sparse|ArrayLike|NDArray|pathlib|collections|typing)(\..*)?"),
]

html_theme = "furo"
html_title = f"fedmc {version}"
html_static_path = ["site_parts/static"]
html_css_files = ["tables.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "footer_icons": [],
    "light_css_variables": {"font-stack": "system-ui, sans-serif", "color-brand-primary": "#1d4e89"},
    "dark_css_variables": {"color-brand-primary": "#8ab8e8", "color-brand-content": "#8ab8e8"},
}
copybutton_exclude = ".linenos, .gp, .go"

myst_heading_anchors = 4
default_role = "code"  # `names` in docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # a signature of forty annotated parameters cannot be read
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    app.add_source_parser(NotebookParser)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_config_value("notebook_outputs", True, "env", bool)
    app.connect("source-read", lambda _, name, source: _with_toctrees(name, source))
    app.connect("autodoc-process-docstring", lambda *given: numpydoc.rewrite(given[-1]), priority=400)
    app.connect("build-finished", lambda app, error: _with_index(Path(app.outdir), app.builder.format, error))


def _with_toctrees(name: str, source: list[str]) -> None:
    """The index of docs/README.md becomes the site's navigation."""
    if name == root_doc:
        source[0] = toctrees.added(source[0])


def _with_index(folder: Path, form: str, error: Exception | None) -> None:
    """A web server opens index.html."""
    if form == "html" and error is None:
        shutil.copy(folder / f"{root_doc}.html", folder / "index.html")
