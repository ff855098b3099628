"""The errors a user can meet, each with the exit code of the command line.

An error's text says what is wrong (with the value), where (file, row or key), and what to do next. Anything that is not
a `ZooError` is our own fault and ends with exit code 1.
"""

import difflib
from collections.abc import Iterable


class ZooError(Exception):
    """Base of every error that a user can mend; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(ZooError, ValueError):
    """A wrong name, option, setting or combination."""

    exit_code = 2


class DataError(ZooError, ValueError):
    """A file or rows that cannot be used."""

    exit_code = 2


class DoesNotFitError(ZooError):
    """The job needs more memory than there is."""

    exit_code = 4


class DivergedError(ZooError):
    """Training produced a loss that is not finite or far too large."""

    exit_code = 5


class MissingError(ZooError):
    """A package or weights that are not here and could not be fetched."""

    exit_code = 6


class StoppedError(ZooError):
    """Training was stopped from outside; the run can be resumed."""

    exit_code = 75


class InterruptedByUser(ZooError):  # noqa: N818 - an event, named like KeyboardInterrupt
    """Ctrl-C during training; the state is saved."""

    exit_code = 130


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known names nearest to `name`, or an empty string."""
    by_letters = {each.lower(): each for each in known}
    near = [by_letters[each] for each in difflib.get_close_matches(str(name).lower(), by_letters, n=3, cutoff=0.6)]
    return f" Did you mean {' or '.join(near)}?" if near else ""
