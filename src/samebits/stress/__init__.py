"""Runs under variations that must not matter."""
