"""The client's side of a YARN cluster."""
