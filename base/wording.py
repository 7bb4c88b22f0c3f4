"""What is wrong with a file's fields, in this project's words: the libraries that notice it speak to programmers."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import BaseModel, ValidationError

from kernelcrew.errors import BadManifest

SHOULD_BE = {
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "string_type": "a text in quotes",
    "path_type": "a path in quotes",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""What a field should be, by pydantic's name of the error."""


OURS = "folder"
"""A field that no file gives."""


def toml_of(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises BadManifest naming the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        found = re.search(r" \(at line (\d+), column (\d+)\)$", said)
        line = int(found[1]) if found else len(text.rstrip().splitlines()) or 1
        what = said[: found.start()] if found else f"{said.removesuffix(' (at end of document)')}: the text ends here"
        fix = "mend this line, or close what it opens"
        raise BadManifest(f"{where}, line {line}", f"not TOML: {what}", fix=fix) from error


def told(where: str, error: ValidationError, model: type[BaseModel]) -> BadManifest:
    """The first thing that is wrong: file, field, what, and what to do."""
    first = error.errors()[0]
    loc = [part for part in first["loc"] if part != "[key]"]
    place = f"{where}, field '{field_name(loc)}'"
    what, fix = explained(dict(first), model)
    return BadManifest(place, what, fix=fix)


def explained(first: dict[str, Any], model: type[BaseModel]) -> tuple[str, str]:
    """What is wrong and what to do, of one of pydantic's errors."""
    kind, loc = str(first["type"]), list(first["loc"])
    if kind == "extra_forbidden":
        fields = [name for name in fields_at(model, loc[:-1]) if name != OURS]
        return "no such field", f"the fields are {', '.join(fields)}" if fields else "remove it or mend its name"
    if kind == "missing":
        return "it is missing", "add it"
    if kind == "literal_error":
        return f"{shown(first['input'])} is not known", f"give one of {first['ctx']['expected'].replace(' or ', ', ')}"
    if kind in SHOULD_BE:
        return f"{shown(first['input'])} is not {SHOULD_BE[kind]}", f"give {SHOULD_BE[kind]}"
    return f"{shown(first['input'])} cannot stand here", "mend its value"


def fields_at(model: type[BaseModel], loc: list[int | str]) -> list[str]:
    """The names of the fields that the table at `loc` may have."""
    kind: Any = model
    for part in loc:
        fields = getattr(kind, "model_fields", {})
        if isinstance(part, str) and part in fields:
            kind = fields[part].annotation
        kind = _record_in(kind) or kind
    return sorted(getattr(kind, "model_fields", {}))


def _record_in(annotation: Any) -> Any:
    """The model that an annotation such as `tuple[Axis, ...]` or `dict[str, Backend]` is about; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in getattr(annotation, "__args__", ()) if (found := _record_in(a))), None)


def field_name(loc: list[int | str]) -> str:
    """`shapes[0].axes`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value as a file would write it, cut short."""
    text = {True: "true", False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
