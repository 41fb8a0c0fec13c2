"""Code that runs inside the container, in every rank: standard library, numpy, torch and megatron only."""
