"""From a tensor to a record: digests, staging, and the state of one rank."""
