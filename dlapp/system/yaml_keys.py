"""Keys of dlapp's own YAML files, the configuration and the operator's file, and the only YAML reader.

PyYAML is imported only if a file exists: importing it costs more than the rest of a command's start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.system.text import nearest
from dlapp.value import Field, V, Value, fields

if TYPE_CHECKING:
    import yaml

MAX_FOREIGN_BYTES = 1 << 20
"""Size limit of a YAML file of another program; PyYAML takes 15 us per byte."""
_MAX_DEPTH = 32
MAX_PROBLEMS = 20
"""Number of errors after which the rest of a file is not checked."""


class Key(Field):
    """A key: a field of a `Value` with its reader. The arguments are those of `key`."""

    __slots__ = ("default_text", "is_list", "kind", "meaning", "name", "read")

    def __init__(
        self, read: Callable[[Any], Any], default_text: str | None, kind: str, meaning: str, name: str, is_list: bool
    ) -> None:
        super().__init__(default_factory=self.default_value)
        self.read, self.default_text, self.kind, self.meaning = read, default_text, kind, meaning
        self.name, self.is_list = name, is_list

    def default_value(self) -> Any:
        """Return the value of the default text."""
        if self.default_text is None:
            return None
        return self.read(_parts(self.default_text) if self.is_list else self.default_text)

    def value_of(self, texts: list[str]) -> Any:
        """Return the value of the texts in a file. Raises ValueError, with the problem."""
        if self.is_list:
            return self.read(texts)
        if len(texts) != 1:
            raise ValueError("must be a single value")
        return self.read(texts[0])


class Level(Field):
    """A level of a file: a field whose value is a `Value` with the keys of that level."""

    __slots__ = ("section",)

    def __init__(self, section: type[Value]) -> None:
        super().__init__(default_factory=section)
        self.section = section


def key(
    read: Callable[[Any], Any], default: str | None, kind: str, meaning: str, *, name: str = "", is_list: bool = False
) -> Any:
    """Return a `Key`, typed so that it may stand for the default in a class.

    Args:
        read: text -> value, or texts -> value if it is a list; ValueError with the problem.
        default: as written in a file; None: the value is None. An empty text is a list without items.
        kind: allowed values, for the documentation.
        meaning: one sentence, for the documentation.
        name: as in a file, without the levels above; empty: the name of the field. A field's name has its unit.
        is_list: the key may have a list, in the file or as texts between commas.
    """
    return Key(read, default, kind, meaning, name, is_list)


def level(section: type[V]) -> V:
    """Return a `Level` of the keys of a class, typed so that it may stand for the default in a class."""
    return Level(section)  # type: ignore[return-value]


def keys_of(section: type[Value], prefix: str = "") -> Mapping[str, Key]:
    """Return the keys of a class and of its levels, by their names with dots, in the order of the fields."""
    found: dict[str, Key] = {}
    for name, one in fields(section).items():
        if isinstance(one, Level):
            found |= keys_of(one.section, f"{prefix}{name}.")
        elif isinstance(one, Key):
            found[prefix + (one.name or name)] = one
    return found


def section_fields(section: type[Value], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of a class that are keys and levels, from the value of each of `keys_of`."""
    found: dict[str, Any] = {}
    for name, one in fields(section).items():
        if isinstance(one, Level):
            found[name] = one.section(**section_fields(one.section, values, f"{prefix}{name}."))
        elif isinstance(one, Key):
            found[name] = values[prefix + (one.name or name)]
    return found


class YamlValue(NamedTuple):
    """Value of one key in a file: its location (``file:line``), and the text, or the texts of a list."""

    where: str
    texts: list[str]


def yaml_values(
    data: bytes,
    path: str,
    names: Collection[str],
    problems: list[str],
    *,
    lists: Collection[str] | None = None,
    mappings: Collection[str] = (),
) -> dict[str, YamlValue]:
    """Return the keys of one file. Nodes are read instead of values: they have line numbers, and 10:30 stays text.

    Args:
        data: the content.
        path: the path of the file, for messages.
        names: the known keys.
        problems: receives one line for each problem.
        lists: whether any key may have a list, also as texts between commas, and which may have an empty one; None if
            none may.
        mappings: which may have a mapping, whose text is ``key: value, key: value``.
    """
    import yaml

    found: dict[str, YamlValue] = {}
    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=_loader())
    except UnicodeDecodeError as error:
        problems.append(f"{path}:{data[: error.start].count(10) + 1}: is not UTF-8")
        return found
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        problems.append(f"{path}{at}: is not YAML: {getattr(error, 'problem', None) or 'cannot be read'}")
        return found
    if root is None:
        return found
    levels = dict.fromkeys(name.rpartition(".")[0] for name in names)
    for name, line, node in _leaves(root, "", levels, yaml):
        where = f"{path}:{line}"
        if len(problems) >= MAX_PROBLEMS:
            problems.append(f"{where}: the rest is not checked")
            break
        if name in found:
            problems.append(f"{where}: {name}: appears twice, first in line {found[name].where.rpartition(':')[2]}")
        elif name in levels:
            if not _is_empty(node):  # "local:" with all its keys commented out
                problems.append(f"{where}: {name or 'the file'}: must be a level with keys under it")
        elif name not in names:
            problems.append(f"{where}: {name}: is not known, {nearest(name, [*filter(None, levels), *names])}")
        elif (texts := _texts_of(node, yaml, lists is not None, name in mappings)) is None:
            what = "a single value" if lists is None else "a value or a list of values"
            problems.append(f"{where}: {name}: must be {what}")
        elif texts or name in (lists or ()):
            found[name] = YamlValue(where, texts)
        else:
            problems.append(f"{where}: {name}: is empty")
    return found


def _texts_of(node: yaml.Node, yaml: Any, may_be_list: bool, may_be_mapping: bool) -> list[str] | None:
    if may_be_mapping and isinstance(node, yaml.MappingNode):
        parts = [(one, value) for one, value in node.value if isinstance(value, yaml.ScalarNode)]
        if len(parts) < len(node.value):
            return None
        return [", ".join(f"{one.value}: {value.value}" for one, value in parts)]
    if isinstance(node, yaml.ScalarNode):
        if _is_empty(node):
            return []
        return _parts(node.value) if may_be_list else [node.value]
    if may_be_list and isinstance(node, yaml.SequenceNode):
        return (
            [one.value for one in node.value] if all(isinstance(one, yaml.ScalarNode) for one in node.value) else None
        )
    return None


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def _is_empty(node: yaml.Node) -> bool:
    return node.value in ("", "~", "null")


def _leaves(
    node: yaml.Node, prefix: str, levels: Mapping[str, None], yaml: Any
) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield each key with its line (from 1) and its node: scalars, and nodes that are not one of our levels."""
    if not isinstance(node, yaml.MappingNode):
        yield prefix, node.start_mark.line + 1, node
        return
    for key, value in node.value:
        own = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"  # YAML's mark of a list or mapping as a key
        name = f"{prefix}.{own}" if prefix else own
        if name in levels and isinstance(value, yaml.MappingNode):
            yield from _leaves(value, name, levels, yaml)
        else:
            yield name, key.start_mark.line + 1, value


def plain_yaml(data: bytes) -> Any:
    """Return the content of an untrusted YAML (or JSON) file: dicts, lists and, for all scalars, texts.

    Raises:
        ValueError: it is not YAML, nested too deeply, or too large.
    """
    import yaml

    if len(data) > MAX_FOREIGN_BYTES:
        raise ValueError(f"is larger than {MAX_FOREIGN_BYTES >> 10} KiB")
    try:
        return yaml.load(data, Loader=_loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"is not YAML: {getattr(error, 'problem', None) or 'cannot be read'}") from error


def _loader() -> Any:
    """Return PyYAML's loader for all files: it reads all scalars as text, whatever their tags, and limits the depth.

    Without a limit, the scanner checks for each token every collection that was opened in the last 1024 characters:
    5000 opening brackets took 1 s, and then reached Python's recursion limit.
    """
    import yaml

    class BoundedLoader(yaml.BaseLoader):  # type: ignore[misc]
        def fetch_flow_collection_start(self, token_class: Any) -> None:
            self._check_depth(self.flow_level)
            super().fetch_flow_collection_start(token_class)

        def add_indent(self, column: int) -> bool:
            self._check_depth(len(self.indents))
            added: bool = super().add_indent(column)
            return added

        def _check_depth(self, depth: int) -> None:
            if depth >= _MAX_DEPTH:
                problem = f"nested more than {_MAX_DEPTH} levels deep"
                raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())

    return BoundedLoader
