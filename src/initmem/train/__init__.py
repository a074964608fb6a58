"""Training: packs of replicas in, records out. Nothing here knows about the store."""
