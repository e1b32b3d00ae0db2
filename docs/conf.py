"""The site: pages in Markdown, and the reference from the docstrings. `make docs` builds it."""

from __future__ import annotations

import os
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx

import hyperadam

project = "hyperadam"
version = release = hyperadam.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
highlight_language = "none"  # what is not called Python is a command, or a drawing

html_theme = "furo"
html_title = f"hyperadam {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4  # links to headings, as on a page of Markdown

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def leave_the_site(app: Sphinx, doctree: nodes.document) -> None:
    """Links to what is in the repository, and is no page.

    A file is a download; Markdown is no page if it lies elsewhere. A folder cannot be downloaded:
    its name stays, as text. What is not there stays a link, and the build fails.
    """
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(doctree.findall(pending_xref)):
        if link.get("reftype") != "myst":
            continue
        target = Path(link["reftarget"])
        if (here / target).is_dir():
            link.replace_self(link.children)
        elif link["refdomain"] == "doc" and target.is_absolute():  # else it is a page's name
            file = os.path.relpath(f"{target}.md", here)
            found = {"reftarget": file, "refdoc": app.env.docname}
            link.replace_self(download_reference("", "", *link.children, **found))


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", leave_the_site, priority=400)  # before downloads are collected
