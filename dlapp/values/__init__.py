"""Values that client, launcher, engines, ApplicationMaster and task exchange: a user's request, its state, what
they send each other. They have their rules and their JSON form. They do no I/O and import only `dlapp.locations`,
`dlapp.login` and `dlapp.sweep` of the other packages.
"""
