"""dlapp-shell: a session on this machine, what is brought for it, and the server that dlapp-run asks."""
