"""The writers of :mod:`hyperadam.files` by older names, which the suite still uses."""

from __future__ import annotations

from hyperadam.files import write_atomically as write_text
from hyperadam.files.names import safe_name

__all__ = ["safe_name", "write_text"]
