"""The registry as frozen records: which recipe for which data, and why.

Reading registry.yaml strictly is the work of `zoo.registry_yaml`, which is imported only when the file changed since
the last start: its checked content is kept as JSON in the user's cache folder, because pydantic and PyYAML together
would use up the start-up budget. The records below are plain dataclasses for the same reason; pydantic checks the file
against these very classes, so there is one definition of every field.
"""

import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from trainers.errors import MissingError, UsageError, did_you_mean

# Read by pydantic: unknown keys are errors, and nothing is converted ("1" is not 1).
_STRICT = {"extra": "forbid", "strict": True}

Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A paper, the documents this project was given, or a measurement of ours (then `command` repeats it)."""

    __pydantic_config__ = _STRICT
    title: str
    year: int
    url: str | None = None
    kind: Literal["paper", "given", "measured"] = "paper"
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a source says, in our words, and where in it."""

    __pydantic_config__ = _STRICT
    source: str
    where: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """What a source says against a cell."""

    __pydantic_config__ = _STRICT
    source: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Note:
    """Advice printed with every answer for a type, or only with n < `below`. folds: what it adds to the command."""

    __pydantic_config__ = _STRICT
    says: str
    source: str
    where: str
    below: int | None = None
    folds: int | None = None


@dataclass(frozen=True, kw_only=True)
class DataType:
    """A kind of data: what one row is, and what can be asked of it."""

    __pydantic_config__ = _STRICT
    unit: str
    about: str
    tasks: tuple[str, ...]
    length_unit: str | None = None
    data_args: str = "--data FILE --target COLUMN"
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One answer of the selection table with the conditions under which it holds (see the head of registry.yaml)."""

    __pydantic_config__ = _STRICT
    task: Literal["any"] | tuple[str, ...]
    recipe: str
    because: str
    evidence: tuple[Evidence, ...]
    below: int | None = None
    min_length: int | None = None
    min_series: int | None = None
    min_channels: int | None = None
    below_audio_hours: int | None = None
    device: Literal["edge", "cpu", "gpu"] | None = None
    latency: Literal["tight"] | None = None
    pretrained: Literal[True] | None = None
    coordinates: Literal[True] | None = None
    runner_up: str | None = None
    choose_runner_up_if: str | None = None
    disputed: tuple[Dispute, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be there before a recipe runs; memory in GiB of the device that trains.

    weights: the command that installs the package with the default weights, where there is one beside the extra."""

    __pydantic_config__ = _STRICT
    extra: str = ""
    memory_gib: float | None = None
    weights: str = ""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What `zoo train RECIPE` uses without --data; options and train override the recipe's."""

    __pydantic_config__ = _STRICT
    data: str
    about: str
    target: str | None = None
    task: str | None = None
    group: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Marks a transformer trained from nothing, whose size `zoo plan` answers without data; `source` for the ratio.

    causal: whether it writes token by token and so keeps a cache.  caveat: where the law may not hold.
    The rest is how the family grows (see `zoo.scaling.ShapeRule`).
    """

    __pydantic_config__ = _STRICT
    unit: str
    per_parameter: float
    source: str
    causal: bool
    width_per_layer: int
    head_size: int
    vocabulary: int
    embedding_tables: int
    caveat: str | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one model is trained, with everything inherited from its parents filled in.

    data_args: how `zoo train` is handed the data, where that is not as for the rest of its type.
    task_args: the same for tasks that take it differently from the others of the recipe.
    """

    __pydantic_config__ = _STRICT
    name: str
    status: Literal["ready", "planned"]
    about: str
    tasks: tuple[str, ...]
    needs: Needs
    data_args: str = ""
    task_args: Mapping[str, str] = field(default_factory=dict)
    extends: str | None = None
    module: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    demo: Demo | None = None
    scaling: Scaling | None = None
    evidence: tuple[Evidence, ...] = ()

    @property
    def type(self) -> str:
        """The data type, which is the first half of the name."""
        return self.name.partition("/")[0]

    @property
    def install(self) -> str:
        """The command that installs what the recipe needs; empty while it is planned, as its extra does not exist yet."""
        known = self.needs.extra and self.status == "ready"
        return f"pip install 'domain-model-zoo[{self.needs.extra}]'" if known else ""

    @property
    def requirements(self) -> str:
        """What must be there, in words; empty while it is planned."""
        if self.status == "planned":
            return ""
        weights = f"; for its default weights {self.needs.weights}" if self.needs.weights else ""
        memory = f"; about {self.needs.memory_gib:g} GiB of memory" if self.needs.memory_gib else ""
        return f"{self.install or 'nothing beyond the base install'}{weights}{memory}"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Everything that registry.yaml says. `bases` are the names and parents of entries that are not runnable."""

    __pydantic_config__ = _STRICT
    types: Mapping[str, DataType]
    cells: Mapping[str, tuple[Cell, ...]]
    recipes: Mapping[str, Recipe]
    sources: Mapping[str, Source]
    bases: Mapping[str, str | None]

    def get(self, name: str) -> Recipe:
        """The recipe called `name`; UsageError with the nearest names if there is none."""
        if name not in self.recipes:
            raise UsageError(f"unknown recipe {name!r}.{did_you_mean(name, self.recipes)} `zoo list` shows all.")
        return self.recipes[name]

    def ready(self, name: str) -> Recipe:
        """The recipe called `name` if it can be trained; UsageError naming the nearest ready one if it is planned."""
        recipe = self.get(name)
        if recipe.status == "ready":
            return recipe
        near = self.nearest_ready(recipe)
        instead = f"The nearest ready recipe is {near.name}." if near else "`zoo list --status ready` shows what is."
        raise UsageError(f"{name} is planned, not built yet. {instead}")

    def data_args(self, recipe: Recipe, task: str = "") -> str:
        """What `zoo train` is handed with `recipe`, for `task` where that matters: "--data FILE --target COLUMN"."""
        return recipe.task_args.get(task) or recipe.data_args or self.types[recipe.type].data_args

    def nearest_ready(self, recipe: Recipe, tasks: Iterable[str] = ()) -> Recipe | None:
        """The ready recipe of the same type met first when walking outwards from `recipe` through the type's cells.

        tasks: what it must be able to do at least one of; none given: one of `recipe`'s own tasks.
        """
        wanted = set(tasks) or set(recipe.tasks)
        able = {name for name, other in self.recipes.items() if other.status == "ready" and wanted & set(other.tasks)}
        cells = self.cells.get(recipe.type, ())
        own = [index for index, cell in enumerate(cells) if recipe.name in (cell.recipe, cell.runner_up)] or [0]
        walk = sorted(range(len(cells)), key=lambda index: min(abs(index - at) for at in own))
        names = [name for index in walk for name in (cells[index].recipe, cells[index].runner_up) if name]
        same_type = [name for name in self.recipes if name.partition("/")[0] == recipe.type]
        return next((self.recipes[name] for name in [*names, *same_type] if name in able), None)

    def type_of(self, name: str) -> DataType:
        """The data type called `name`; UsageError with the nearest names if there is none."""
        if name not in self.types:
            near = did_you_mean(name, self.types)
            raise UsageError(f"unknown data type {name!r}.{near} Types: {', '.join(self.types)}.")
        return self.types[name]


# --- from a checked tree to records ---------------------------------------------------------------------------------


def _many(record: Any, items: Iterable[Tree] | None) -> tuple[Any, ...]:
    return tuple(record(**item) for item in items or ())


def _data_type(node: Tree) -> DataType:
    return DataType(**{**node, "tasks": tuple(node["tasks"]), "notes": _many(Note, node.get("notes"))})


def _cell(node: Tree) -> Cell:
    task = node["task"] if node["task"] == "any" else tuple(node["task"])
    evidence, disputed = _many(Evidence, node["evidence"]), _many(Dispute, node.get("disputed"))
    return Cell(**{**node, "task": task, "evidence": evidence, "disputed": disputed})


def _recipe(node: Tree) -> Recipe:
    changed = {
        "tasks": tuple(node["tasks"]),
        "needs": Needs(**node["needs"]),
        "demo": Demo(**node["demo"]) if "demo" in node else None,
        "scaling": Scaling(**node["scaling"]) if "scaling" in node else None,
        "evidence": _many(Evidence, node.get("evidence")),
    }
    return Recipe(**{**node, **changed})


def registry_from_tree(tree: Tree) -> Registry:
    """Build the records from a tree that `zoo.registry_yaml.checked_tree` has returned."""
    return Registry(
        types={name: _data_type(node) for name, node in tree["types"].items()},
        cells={name: tuple(_cell(node) for node in nodes) for name, nodes in tree["cells"].items()},
        recipes={name: _recipe(node) for name, node in tree["recipes"].items()},
        sources={name: Source(**node) for name, node in tree["sources"].items()},
        bases=tree["bases"],
    )


def field_names(record: Any) -> list[str]:
    """The keys that an entry of registry.yaml may have."""
    return [item.name for item in fields(record)]


# --- finding, caching, loading --------------------------------------------------------------------------------------


def registry_path() -> Path:
    """Where registry.yaml lies: beside the package in a wheel, else in the repository root."""
    package = Path(__file__).resolve().parent
    for path in (package / "registry.yaml", package.parent / "registry.yaml"):
        if path.is_file():
            return path
    raise MissingError(f"no registry.yaml in {package} or {package.parent}. Install domain-model-zoo again.")


def _cache_file(path: Path) -> Path:
    """One cache file per place of the registry, so that several checkouts do not overwrite each other's."""
    windows = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    root = os.environ.get("XDG_CACHE_HOME") or windows or os.path.expanduser("~/.cache")
    place = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    return Path(root) / "domain-model-zoo" / f"registry-{place}.json"


def _cache_key(content: bytes) -> bytes:
    """Changes with the registry and with the code that checks it."""
    here = Path(__file__)
    stamps = [here.stat().st_mtime_ns, here.with_name("registry_yaml.py").stat().st_mtime_ns]
    return content + repr(stamps).encode()


def _seal(key: bytes, body: bytes) -> bytes:
    return hashlib.sha256(key + body).hexdigest().encode()


def _read_cache(file: Path, key: bytes) -> Tree | None:
    """The tree that was checked before, or None if there is none for this key or a single byte is off."""
    try:
        seal, _, body = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    return json.loads(body) if seal == _seal(key, body) else None


def _write_cache(file: Path, key: bytes, tree: Tree) -> None:
    """Write the tree through a temporary file; a cache that cannot be written is no error, only slower."""
    body = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        with os.fdopen(handle, "wb") as out:
            out.write(_seal(key, body) + b"\n" + body)
        os.replace(name, file)
    except OSError:
        return


def read_registry(path: Path, *, cache: bool = False) -> Registry:
    """Read and check one registry file; UsageError names the first faults with their keys."""
    content = path.read_bytes()
    file, key = _cache_file(path), _cache_key(content)
    tree = _read_cache(file, key) if cache else None
    if tree is None:
        from zoo.registry_yaml import checked_tree

        tree = checked_tree(content, str(path))
        if cache:
            _write_cache(file, key, tree)
    return registry_from_tree(tree)


@functools.cache
def load_registry() -> Registry:
    """The registry of this installation, read once per process."""
    return read_registry(registry_path(), cache=True)


def get(name: str) -> Recipe:
    """The recipe called `name` of this installation's registry."""
    return load_registry().get(name)
