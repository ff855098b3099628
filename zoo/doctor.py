"""What is here and what is missing: machine, versions, extras, and the pip line that mends each. Imports nothing heavy;
only where there is a GPU's driver, torch is asked about it in a process of its own."""

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from domains.shared.folders import cache_folder
from trainers.contract import JSON, Machine
from zoo import __version__, hardware

PACKAGE = "domain-model-zoo"
# For the people who build the zoo, not for those who use it.
_NOT_FOR_USE = ("test",)
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([\w, -]*)\])?\s*([^;]*)(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")
_CHILD_SECONDS = 60
_ASK = "import json, dataclasses; from zoo.hardware import detect; print(json.dumps(dataclasses.asdict(detect())))"


@dataclass(frozen=True)
class Requirement:
    """One line of the package's metadata: what is needed (of itself: another extra), in which versions, for which extra
    ("" for all)."""

    name: str
    extras: tuple[str, ...]
    versions: str
    extra: str


def examination() -> JSON:
    """What `zoo doctor --json` prints.

    extras: for each one what is `missing` (not installed), `unfit` (installed in another version than asked for), and the
    command that mends it, empty where nothing is wrong.
    """
    needed = requirements(own_requirements())
    names = sorted({line.extra for line in needed} - {"", *_NOT_FOR_USE})
    packages = sorted({line.name for line in needed if line.extra not in _NOT_FOR_USE} - {PACKAGE})
    machine, problem = machine_here()
    return {
        "schema_version": 1,
        "zoo": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": {**asdict(machine), "memory_used_bytes": hardware.memory_used()},
        "problem": problem or ("" if needed else f"Extras are unknown: {PACKAGE} is not installed. pip install -e ."),
        "cache": str(cache_folder()),
        "packages": {name: version(name) for name in packages},
        "extras": {name: state_of(name, needed) for name in names},
    }


def own_requirements() -> list[str]:
    """The lines of the package's metadata; none where it runs from a folder without being installed."""
    try:
        return importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def requirements(lines: Sequence[str]) -> list[Requirement]:
    """The lines of the metadata, taken apart."""
    found = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        assert match is not None, line
        name, extras, versions, extra = match.groups()
        known = tuple(part.strip() for part in (extras or "").split(",") if part.strip())
        found.append(Requirement(name.lower().replace("_", "-"), known, versions.strip(), extra or ""))
    return found


def needs_of(extra: str, needed: Sequence[Requirement]) -> Iterator[Requirement]:
    """The packages of an extra and of the extras that it is made of; one may come twice."""
    for line in needed:
        if line.extra == extra and line.name == PACKAGE:
            for part in line.extras:
                yield from needs_of(part, needed)
        elif line.extra == extra:
            yield line


def state_of(extra: str, needed: Sequence[Requirement]) -> JSON:
    """What an extra lacks, and the command that mends it."""
    lines = list(dict.fromkeys(needs_of(extra, needed)))
    missing = [line.name for line in lines if version(line.name) is None]
    unfit = [f"{line.name} {version(line.name)} ({line.versions})" for line in lines if not is_fit(line)]
    mend = f"pip install '{PACKAGE}[{extra}]'" if missing or unfit else ""
    return {"missing": missing, "unfit": unfit, "install": mend}


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_fit(line: Requirement) -> bool:
    """Whether what is installed is among the versions asked for; True also where it is missing, or nobody can tell."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # no package of ours: it comes with most others
        return True
    here = version(line.name)
    return here is None or SpecifierSet(line.versions).contains(here, prereleases=True)


def machine_here() -> tuple[Machine, str]:
    """The machine, and what is wrong with its GPU if something is."""
    if not hardware.has_gpu_driver():
        return hardware.detect("cpu"), ""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, check=True, timeout=_CHILD_SECONDS
        )
        machine = Machine(**json.loads(asked.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return hardware.detect("cpu"), f"There is a GPU's driver, but asking torch about it failed: {error}."
    if machine.device != "cpu":
        return machine, ""
    torch = version("torch")
    here = f"torch {torch}" if torch else "no torch"
    return machine, f"There is a GPU's driver, but {here} that can use it. See https://pytorch.org/get-started"


def as_rows(found: JSON) -> list[list[str]]:
    """The examination as rows of a table."""
    machine = found["machine"]
    gib = f"{machine['memory_bytes'] / 2**30:.1f} GiB"
    peak = f", {machine['peak_flops'] / 1e12:g} TFLOP/s by its data sheet" if machine["peak_flops"] else ""
    rows = [
        ["zoo", f"{found['zoo']}, Python {found['python']}, {found['system']}"],
        ["machine", f"{machine['device']}: {machine['name']}, {machine['cores']} cores, {gib}{peak}"],
        ["bf16", "yes" if machine["bf16"] else "no: training uses fp16 on a GPU, else fp32"],
        ["cache", found["cache"]],
    ]
    if found["problem"]:
        rows.append(["problem", found["problem"]])
    rows += [[name, here] for name, here in found["packages"].items() if here]
    for name, state in found["extras"].items():
        lacks = ", ".join([*state["missing"], *state["unfit"]])
        rows.append([f"[{name}]", f"lacks {lacks}: {state['install']}" if lacks else "complete"])
    return rows
