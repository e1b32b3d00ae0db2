"""The tiny tasks for all tests here."""

from tests.experiments.tiny import tiny

__all__ = ["tiny"]
