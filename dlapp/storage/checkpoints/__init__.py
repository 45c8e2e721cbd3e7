"""Checkpoints of a payload: numbered copies of one directory at a place, each whole or not at all.

A place is a directory on HDFS or of this machine that belongs to the user alone:

    checkpoint-7.json      manifest of checkpoint 7: names, permissions, times, links, and the digest of each file
    objects/<sha256>       the files, named by their content: one that two checkpoints have is stored once
    .*, objects/.*         what is being written

A copy reads the directory, writes the objects that are missing, reads the directory again, and writes the manifest
last. A manifest that is there therefore has all its objects. If anything changed meanwhile the copy is discarded.
After that the oldest manifests go, and then the objects that no manifest names.

What a copy leaves that was killed are objects without a manifest and hidden names; the next copy removes them before it
writes, but for the objects that it needs itself. So they never grow beyond those of one copy.

Who restores trusts nothing: the manifest is checked, and each file's content against its digest. A checkpoint that
fails that is passed over for the one before it. A process that has lost the node's contact may still store a copy while
another one does: each number is created only once, and a checkpoint whose objects the other one removed is not whole.
"""
