"""What training leaves behind: results, the files that keep them, and what is measured on them."""

from hyperadam.results.result import Result, pool, settings_key
from hyperadam.results.store import Store

__all__ = ["Result", "Store", "pool", "settings_key"]
