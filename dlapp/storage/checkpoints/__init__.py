"""Checkpoints of a payload: numbered copies of one directory; each is complete or invisible.

Their place is a directory on HDFS or of this machine that is exclusive to the user:

    checkpoint-7.json      manifest of checkpoint 7: names, permissions, times, links, and the digest of each file
    objects/<sha256>       the files, named by their content: one that two checkpoints have is stored once
    .*, objects/.*         what is being written

A copy reads the directory, writes the missing objects, reads the directory again, and writes the manifest last. So an
existing manifest has all its objects. If anything changed meanwhile, the copy is discarded. After a copy, the oldest
manifests are removed, and then the objects that no manifest names.

A killed copy leaves objects without a manifest and hidden names; the next copy removes them before it writes, except
the objects that it needs itself. So they never exceed those of one copy.

A restore trusts nothing: it validates the manifest, and each file's content against its digest. If a checkpoint fails
that, the previous one is tried. A process on a node that is cut off may store a copy concurrently with another process:
each number is created only once, and a checkpoint whose objects the other process removed is incomplete.
"""
