"""Holdfast makes fine-tuning runs finish."""

__version__ = "0.1.0"
