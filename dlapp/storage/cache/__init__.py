"""Cache of input on a node."""
