"""Placeholder reading guide."""
