"""Records of the journal: one value class per kind, which writes the record, reads it and replays it.

`record` has their base class and `recovered` what a replay recovers; `containers`, `indexes`, `application` and
`trials` have the classes, by subject. No I/O: `dlapp.am.model.journal` reads lines.
"""
