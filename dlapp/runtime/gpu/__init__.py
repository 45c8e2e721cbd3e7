"""Access of a container to its GPUs."""
