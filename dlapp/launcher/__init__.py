"""Submission: a properties file is converted to a spec, checked, its workspace packed, and submitted.

`properties` reads the file, `keys` is the table of valid keys, `application` converts the file to an `AppSpec`,
`workspace.pack` packs the workspace, and `submit` executes all steps and outputs the lines that ``dlapp-launcher``
prints.
"""
