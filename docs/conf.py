"""The site of the documentation: sphinx-build -W -c docs . site. The README is its first page."""

import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "servesweep"
version = release = version_of("servesweep")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]  # myst_nb: myst_parser, and notebooks
nb_execution_mode = "off"  # they hold their output
include_patterns = ["*.md", "docs/*.md", "docs/notebooks/*.ipynb", "docs/api/*.rst", "results/README.md"]
root_doc = "README"
myst_heading_anchors = 4  # links to headings, as GitHub has them
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_use_ivar = True
html_theme = "furo"
html_title = f"servesweep {version}"
html_copy_source = False
html_show_sourcelink = False

_PAGES = {
    "Start": "first-hour coming-from eight-gpus notebooks/policies notebooks/disaggregated",
    "Ask": "sweeps experiment-keys running resuming goodput goodput-endings placement placement-trust workloads "
    "conversation traces public-traces performance scaling options",
    "Read": "results plots report timeline run-directory pandas measures columns other-tools",
    "Rules": "scheduler scheduler-example vllm prefix-caching policies systems presets routers step-times models "
    "calibration fidelity assumptions catalogue beyond",
    "Python": "api/workloads api/hardware api/instance api/systems api/sweeps api/searches api/results api/names",
    "Change it": "architecture engine README",
}


def _contents(_: Any, page: str, source: list[str]) -> None:
    """The README and every page stay plain Markdown: the tree of pages is put behind the first page here."""
    if page == root_doc:
        for caption, names in _PAGES.items():
            entries = "\n".join(f"docs/{name}" for name in names.split())
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"
        source[0] += "\n\n```{toctree}\n:hidden:\n:caption: About\n\nresults/README\nCONTRIBUTING\nCHANGELOG\n```\n"


def _types(*found: Any) -> None:
    """A name that ends in _ is a reference in reStructuredText, unless it is escaped."""
    lines = found[-1]
    lines[:] = [line.replace("numpy.str_", r"numpy.str\_") for line in lines]


def _index(app: Any, failure: Exception | None) -> None:
    """What a web server shows for the folder itself."""
    if failure is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _contents)
    app.connect("build-finished", _index)
    app.connect("autodoc-process-docstring", _types, priority=600)  # behind napoleon, which writes types
