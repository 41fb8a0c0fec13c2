"""From two arms that differ to the operation that made them differ."""
