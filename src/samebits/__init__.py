"""samebits: proves, or disproves and locates, that a training recipe computes the same bits every time."""

__version__ = "0.1.0"
