"""Values in which client, launcher, engines, ApplicationMaster and task meet: what a user asks for, how it goes, what
they tell each other. They know their rules and their JSON form. They do no I/O and import only `dlapp.locations`,
`dlapp.login` and `dlapp.sweep` of the other packages.
"""
