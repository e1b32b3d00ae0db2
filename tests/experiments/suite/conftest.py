"""The tiny suite for all tests here."""

from tests.experiments.suite.small import suite

__all__ = ["suite"]
