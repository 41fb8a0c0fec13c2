"""Which runs a recipe needs, in which order, and what makes one run again. Host only."""
