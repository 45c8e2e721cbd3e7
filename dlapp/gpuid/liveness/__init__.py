"""Whether the payload of a lease is alive."""
