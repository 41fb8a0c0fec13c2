"""What determinism costs: experiments that measure time, and their statistics."""
