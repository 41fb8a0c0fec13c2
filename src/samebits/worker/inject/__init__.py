"""Capture inside a training script that knows nothing of it: hooks set when Python imports what the script imports."""
