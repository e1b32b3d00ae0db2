"""Shipped weights (``.safetensors``, provenance in the metadata) and their loader."""

from hyperadam.weights.loader import WeightsError, list_weights, load_rule

__all__ = ["WeightsError", "list_weights", "load_rule"]
