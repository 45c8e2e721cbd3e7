"""Submission: a properties file becomes a spec, is checked, its workspace packed, and all of it submitted.

`properties` reads the file, `keys` knows what may stand in it, `application` makes an `AppSpec` of it, `workspace.pack`
packs the workspace, and `submit` takes all the steps in turn and says the lines that ``dlapp-launcher`` prints.
"""
