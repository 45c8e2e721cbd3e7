"""Link of a task to its ApplicationMaster: requests, reports, orders; finding the next ApplicationMaster; detecting the
end of the application.
"""
