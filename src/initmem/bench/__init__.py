"""Speed, measured beside peers on the same machine in the same run."""
