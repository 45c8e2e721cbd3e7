"""The client's side of a YARN cluster: `engine` is the interface of the commands, `rest` the ResourceManager's.

`submission`, `status`, `kill` and `waits` have the operations; `cleanup` settles an application that YARN ended.
"""
