"""Which tests must share a process when several run them: those of a file, and in the batteries those of a recipe."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Group for `--dist loadgroup`: what a fixture made once is then made in one process only."""
    for item in items:
        case = getattr(item, "callspec", None)
        recipe = case.params.get("tried") or case.params.get("recipe") if case and "contract" in item.nodeid else None
        item.add_marker(pytest.mark.xdist_group(str(recipe or item.path)))
