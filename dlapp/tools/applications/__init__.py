"""The commands on applications: submit, look at, end, remove."""
