"""dlapp-shell: a session on this machine or a cluster, its input, and the server of dlapp-run's requests."""
