"""Applications that the ResourceManager has forgotten, as YARN's timeline servers know them.

`history` reads the timeline server of versions 1 and 1.5, `reader` the reader of Timeline Service v2. A cluster that
runs both is asked for `history`, which needs one request for a list. Neither decides anything on an application that
the ResourceManager still knows.
"""
