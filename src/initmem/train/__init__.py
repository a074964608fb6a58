"""Training: runs in, records out, a pack of replicas at a time. Nothing here knows about the store."""
