"""Readers of what others wrote, fed with whatever: ``make fuzz``."""
