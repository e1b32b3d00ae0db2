"""A folder to work in for all tests here."""

from tests.experiments.paper.small import here

__all__ = ["here"]
