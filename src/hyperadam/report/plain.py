"""Labels are the user's and may be anything: here they become plain text wherever they are
shown."""

from __future__ import annotations

import re

#: What Markdown would take for HTML, a link, code, emphasis, or the end of a cell.
_MARKDOWN = re.compile(r"([\\`*\[\]|<>&])")
#: What a spreadsheet takes for the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def in_markdown(text: str) -> str:
    """``text`` on one line, with nothing in it that Markdown would act on."""
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    line = re.sub(r"[^\S ]+", " ", text).strip()
    return _MARKDOWN.sub(lambda found: entities.get(found[1], f"\\{found[1]}"), line)


def in_csv(text: str) -> str:
    """``text`` so that a spreadsheet shows it and computes nothing."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def in_figure(text: str) -> str:
    """``text`` so that matplotlib reads no formula in it, nor leaves it out of a legend."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")
