"""What training leaves behind: results, the files that keep them, and what is measured on them."""

from hyperadam.results.result import Result, settings_key
from hyperadam.results.store import Store

__all__ = ["Result", "Store", "settings_key"]
