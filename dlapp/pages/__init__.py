"""HTML pages about one application: the ApplicationMaster's own page, and the report after the end.

Pure functions of values. A page is one file without scripts, fonts, images or styles from elsewhere. Text from users,
payloads and servers is always escaped.
"""
