"""What happens inside a step: modules, collectives, operations, and who wrote which bytes."""
