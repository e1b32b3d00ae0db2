"""File names made of anything."""

from __future__ import annotations

import re


def safe_name(text: str) -> str:
    """``text`` as a part of a file name on any system."""
    return re.sub(r"[^\w@+-]|^-", "_", text)
