"""Arguments from Python, checked where they come in: a value of a wrong type is a sentence, no TypeError from deep within."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainers.errors import UsageError, did_you_mean

# Columns of a DataFrame may be called by numbers.
_CONFIG = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)


def checked(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments `given`, as the annotations of `function` have them (numpy's numbers become Python's).

    name: what the user called, for messages. Raises UsageError for an argument that is not there or of another type.
    """
    parameters = inspect.signature(function).parameters
    return {each: _checked(name, each, value, parameters) for each, value in given.items()}


def _checked(function: str, name: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> Any:
    if name not in parameters:
        known = f"{did_you_mean(name, parameters)} Known: {', '.join(parameters)}."
        raise UsageError(f"zoo.{function}() has no argument {name!r}.{known}")
    kind = parameters[name].annotation
    try:
        return TypeAdapter(kind, config=_CONFIG).validate_python(value)
    except ValidationError as error:
        complaints = " or ".join(dict.fromkeys(fault["msg"] for fault in error.errors()))
        raise UsageError(f"zoo.{function}({name}={value!r:.60}): {complaints}.") from None
