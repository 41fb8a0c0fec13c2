"""Tracing inside a step: modules, collectives, operations, and the writer of each region of memory."""
