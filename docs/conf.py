"""Sphinx: renders the pages of this folder, without a network. Tests run the code in them.

``make docs`` writes the site to ``build/docs``. The reference is written from the list of public
names (:data:`eande._HOMES`): a new name appears in it by being there.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import eande

HERE = Path(__file__).parent

project = "eande"
author = "The eande maintainers"
version = release = eande.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns: list[str] = []

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

# The order of the sources is the order in which one reads.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "default"

html_theme = "pydata_sphinx_theme"
html_title = "eande"
html_static_path = ["_static"]
html_favicon = "_static/eande.svg"
html_context = {"default_mode": "auto"}
html_css_files = ["eande.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "logo": {
        "text": "eande",
        "image_light": "_static/eande.svg",
        "image_dark": "_static/eande.svg",
    },
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark-high-contrast",
}
html_sidebars = {"index": [], "tutorial": [], "changelog": [], "contributing": [], "citing": []}
copyright = "the eande maintainers, MIT licence"

# The folders of the library that have public names, in the order in which data flow.
_STEPS = {
    "priors": "Priors",
    "simulation": "Simulations",
    "similarities": "Similarities",
    "training": "Fitting",
    "inference": "Model and posterior",
    "calibration": "Calibration",
    "diagnostics": "Diagnostics",
    "sequential": "Rounds",
    "reporting": "Report",
    "foundations": "Errors and warnings",
}


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _entry(name: str, home: Any = eande, module: str = "eande") -> str:
    """Return the directive of a public name."""
    found = getattr(home, name)
    if not isinstance(found, type):
        return f".. autofunction:: {module}.{name}\n\n"
    return f".. autoclass:: {module}.{name}\n   :members:\n   :inherited-members:\n\n"


def _write_reference(_app: Any) -> None:
    """Write a page per folder of the library, and the table of all names."""
    folder = HERE / "reference" / "generated"
    folder.mkdir(exist_ok=True)
    steps: dict[str, list[str]] = {step: [] for step in _STEPS}
    for name in eande.__all__:
        steps[eande._HOMES[name].partition(".")[0]].append(name)
    pages: dict[str, tuple[str, str, list[str]]] = {}
    for step, names in steps.items():
        if names:
            about = _first_line(import_module(f"eande.{step}"))
            entries = "".join(map(_entry, names))
            pages[step] = (_title(_STEPS[step]) + f"{about}\n\n" + entries, "eande", names)
    plots = import_module("eande.plots")
    entries = "".join(_entry(name, plots, "eande.plots") for name in plots.__all__)
    text = _title("Plots") + f"{_first_line(plots)}\n\n{entries}"
    pages["plots"] = (text, "eande.plots", list(plots.__all__))
    for page, (text, _, _) in pages.items():
        _write(folder / f"{page}.rst", text)
    for stale in set(folder.glob("*.rst")) - {folder / f"{page}.rst" for page in pages}:
        stale.unlink()
    # Figures of all steps, before the errors of all.
    order = [*list(_STEPS)[:-1], "plots", "foundations"]
    pages_in_order = [page for page in order if page in pages]
    lists = "".join(_table(page, *pages[page]) for page in pages_in_order)
    _write(folder / "names.txt", lists)
    listed = "".join(f"   generated/{page}\n" for page in pages_in_order)
    _write(folder / "toctree.txt", f".. toctree::\n   :hidden:\n\n{listed}")


def _table(page: str, text: str, module: str, names: list[str]) -> str:
    """Return a step's names, each with the first sentence of its docstring."""
    home = import_module(module)
    rows = "".join(
        f"   * - :py:obj:`~{module}.{name}`\n     - {_first_line(getattr(home, name))}\n"
        for name in names
    )
    title = text.partition("\n")[0]
    return f":doc:`{title} <generated/{page}>`\n\n.. list-table::\n   :widths: 25 75\n\n{rows}\n"


def _first_line(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())


def _write(path: Path, text: str) -> None:
    """Write only what changed, so that Sphinx builds only what changed."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _skip(_app: Any, what: str, name: str, thing: Any, skip: bool, _options: Any) -> bool | None:
    """Leave out methods without an example: other folders of the library call them, users do not.

    What torch's and Python's own classes bring along is left out as well.
    """
    if skip or what != "class":
        return skip
    if isinstance(thing, property):
        return not (thing.fget and thing.fget.__module__.startswith("eande"))
    made_here = getattr(thing, "__module__", "").startswith("eande")
    return not (made_here and ">>>" in (thing.__doc__ or ""))


def setup(app: Any) -> None:
    """Register what happens before and while the pages are read."""
    app.connect("builder-inited", _write_reference, priority=100)
    app.connect("autodoc-skip-member", _skip)
