"""The built-in Megatron Core workload."""
