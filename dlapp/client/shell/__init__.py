"""dlapp-shell: an application that waits for a shell, here or on a cluster, and the server of dlapp-run's requests."""
