"""Where runs are executed: this machine, a Ray cluster, or Slurm."""
