"""The description of an application: from a properties file, keywords or a spec to a checked `AppSpec`.

`keys` is the only table of keys. `properties` parses text to values with their lines, `build` makes a spec of them,
`resolve` its paths and locations, and `problems` has the rules between keys. This package reads files of the user and
asks an engine for its properties only; it submits nothing, and it does not check inputs and outputs
(`dlapp.launcher.checks`).
"""
