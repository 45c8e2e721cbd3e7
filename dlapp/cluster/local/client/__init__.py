"""The commands' side of the embedded engine: submission, views, and the ends that users request (`kill`).

`engine` selects by `access` whose application it is: the caller's, another user's (`other_users`), or for root any
(`as_owner`).
"""
