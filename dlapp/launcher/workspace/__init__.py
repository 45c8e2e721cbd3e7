"""The workspace of an application on its way into an archive: looked through, and packed in one pass. Nothing here
knows of properties, specs or engines.
"""
