"""What runs inside the container: standard library, numpy, torch and megatron only."""
