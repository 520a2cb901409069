"""Jobs of a Slurm cluster, AWS ParallelCluster included."""
