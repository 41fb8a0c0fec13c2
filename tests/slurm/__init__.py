"""Tests on a real Slurm that they start themselves; skipped, with the reason, where that cannot be."""
