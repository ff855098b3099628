"""Which tests must share a process when several run them: those of a file, and in the batteries those of a recipe."""

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share tests out by group: what a fixture made once is then made in one process only."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    return ByGroup(config, log)


def group_of(nodeid):
    """The recipe in the brackets for the batteries of `tests/contract`, else the file."""
    path, _, case = nodeid.partition("::")
    return case.partition("[")[2].rstrip("]") if "contract" in path and "[" in case else path
