"""config.yaml of a run, written and read as plain values only: no tags, no aliases, no key twice.

Run folders are passed on, and YAML holds more than values: tags construct, aliases repeat a block without bound, and of two
equal keys the last one wins unseen.
"""

from pathlib import Path
from typing import Any

import yaml

from trainers.contract import JSON
from trainers.errors import DataError
from zoo import saved

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_PLAIN = tuple(_TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null"))


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_config(path: Path, config: JSON) -> None:
    """Write plain values, keys in their order."""
    saved.write_text(path, yaml.dump(config, Dumper=_NoAliases, sort_keys=False, allow_unicode=True))


def read_config(path: Path) -> JSON:
    """What `write_config` wrote. Raises DataError where the file is missing or holds anything but plain values."""
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=_Loader)
        _refuse(node, path, set())
        found = yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        raise DataError(f"{path}: missing. Is {path.parent} a run folder of zoo train?") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as YAML ({error}). The run folder is damaged.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no settings. The run folder is damaged.")
    return found


def _refuse(node: Any, path: Path, seen: set[int]) -> None:
    """Raise DataError for what is no plain value. seen: nodes met before; an alias is a second meeting."""
    if node is None:
        return
    where = f"{path} line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise DataError(f"{where}: an alias points here. No run of the zoo has one: take another copy of the run.")
    seen.add(id(node))
    if node.tag not in _PLAIN:
        raise DataError(f"{where}: the tag {node.tag!r} is not allowed. No run of the zoo has one: take another copy.")
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _refuse(each, path, seen)
    elif isinstance(node, yaml.MappingNode):
        _refuse_repeated(node, where)
        for pair in node.value:
            for each in pair:
                _refuse(each, path, seen)


def _refuse_repeated(node: yaml.MappingNode, where: str) -> None:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    twice = [name for name in names if names.count(name) > 1]
    if twice or len(names) < len(node.value):
        raise DataError(f"{where}: key {twice[0] if twice else '?'!r} occurs twice or is no text. Take another copy.")
