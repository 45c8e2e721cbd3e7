"""Pages in HTML that show one application: the ApplicationMaster's own page and the report after the end.

Pure functions of values. A page is one file without scripts, fonts, pictures or styles from elsewhere. What users,
payloads and servers wrote is text in it, never markup.
"""
