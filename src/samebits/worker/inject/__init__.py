"""Capture inside an unmodified training script, by hooks set when Python imports what the script imports."""
