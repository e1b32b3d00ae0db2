"""Shipped weights (``.safetensors``, provenance in the metadata) and their loader."""

from hyperadam.weights.loader import ALIASES, WeightsError, list_weights, load_rule

__all__ = ["ALIASES", "WeightsError", "list_weights", "load_rule"]
