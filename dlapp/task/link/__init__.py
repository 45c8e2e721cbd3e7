"""Link of a task to its ApplicationMaster: requests, reports, orders; the search for the next one, and the end of an
application that has none.
"""
