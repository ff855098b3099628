"""What `zoo show` prints: one recipe as plain values and as text."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from zoo.registry import Recipe, Registry


def recipe_json(recipe: Recipe, registry: Registry) -> dict[str, Any]:
    """The recipe with everything inherited filled in, and the cells that name it."""
    plain = dataclasses.asdict(recipe)
    cited = [
        {**item, "title": registry.sources[item["source"]].title, "url": registry.sources[item["source"]].url}
        for item in plain["evidence"]
    ]
    near = None if recipe.status == "ready" else registry.nearest_ready(recipe)
    able = near or (recipe if recipe.status == "ready" else None)
    return {
        "schema_version": 1,
        **plain,
        "evidence": cited,
        "install": recipe.install,
        "requirements": recipe.requirements,
        "chosen_in": [*_cells_naming(recipe.name, registry)],
        "nearest_ready": near.name if near else None,
        "next_command": f"zoo train {able.name} {registry.data_args(able)}" if able else "zoo list --status ready",
    }


def _cells_naming(name: str, registry: Registry) -> Iterator[str]:
    for data_type, cells in registry.cells.items():
        for index, cell in enumerate(cells):
            if name == cell.recipe:
                yield f"cells.{data_type}[{index}]"


def recipe_text(found: Mapping[str, Any], width: int) -> str:
    """What `recipe_json` returned, for a terminal."""
    lines = [f"{found['name']}  ({found['status']})", f"  {found['about']}", ""]
    for label, says in _labelled(found):
        lines += textwrap.wrap(f"{label:<12}{says}", width, subsequent_indent=" " * 12, break_on_hyphens=False)
    return "\n".join(lines)


def _labelled(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "tasks", ", ".join(found["tasks"])
    for block in ("options", "train"):
        yield from ((block, f"{key} = {value}") for key, value in found[block].items())
    if found["requirements"]:
        yield "needs", found["requirements"]
    if found["licence"]:
        yield "licence", found["licence"]
    if found["scaling"]:
        yield "sizes", f"zoo plan {found['name']} --params 1B   (or --tokens, --flops, or --hours and --gpu)"
    if found["demo"]:
        yield "demo", found["demo"]["about"]
    for item in found["evidence"]:
        yield "evidence", f"{item['says']} [{item['title']}, {item['where']} {item['url'] or ''}]"
    if found["status"] == "planned":
        yield "planned", f"not built yet; nearest ready recipe: {found['nearest_ready'] or 'none'}"
    yield "command", found["next_command"]
