"""Values that client, launcher, engines, ApplicationMaster and task exchange: a user's request (`spec`), its state
(`report`, `waiting`, `usage`), and what they send each other (`messages`, `roster`, `launch_spec`, `notification`).
They have their rules (`rules`) and their JSON form (`serialization`). They do no I/O and import only `dlapp.locations`,
`dlapp.login` and `dlapp.sweep` of the other packages.
"""
