"""The description of an application: from a properties file, keywords of Python or a spec to a checked `AppSpec`.

`keys` is the only table of keys; `forms` reads their values. `properties` parses text to values with their lines, and
`keywords` objects of Python; `build` makes a draft of a spec from the values of both, `resolve` replaces its paths and
locations, and `problems` has the rules on what was given; those on a spec are `AppSpec.problems`. `description` does
all this, and collects the errors in one `Problems`, to which the launcher adds those of the engine and of inputs and
outputs. This package reads files of the user and asks an engine for its properties only; it submits nothing.
"""
