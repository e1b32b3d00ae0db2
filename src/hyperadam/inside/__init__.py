"""Seeing inside: looks at a learned optimizer while it trains, as tables, figures and a page."""

from hyperadam.inside.inspection import Inspection, Look, inspect

__all__ = ["Inspection", "Look", "inspect"]
