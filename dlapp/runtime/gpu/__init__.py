"""How a container gets its GPUs."""
