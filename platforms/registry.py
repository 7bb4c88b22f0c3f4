"""The known platforms: one TOML file each in `data/`, every number of it a Figure with source and date."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, UnknownName
from kernelcrew.files import read_text
from kernelcrew.platforms.nouns import Figure, Platform
from kernelcrew.record import Record
from kernelcrew.wording import told, toml_of

DATA = Path(__file__).with_name("data")
ALIASES = ("auto", "cpu")
"""Names that stand for the machine at hand."""
CACHE_LEVELS = ("L1d", "L2", "L3")


class PlatformFile(Record):
    """What one TOML file may say."""

    id: str
    """The platform's id; the file's name without its suffix."""
    readable: str
    """What a person calls it."""
    features: tuple[str, ...]
    """Instruction sets that matter."""
    source: str
    """The document, and what identifies the platform in it."""
    figures: dict[str, Figure]
    """Numbers by name; `vector_bytes` must be there, caches are named L1d, L2, L3."""


def known() -> dict[str, Platform]:
    """The platforms that have a file, by id. Raises BadManifest for a broken one."""
    return dict(_shipped())


def resolve(name: str, here: Platform) -> Platform:
    """The platform of that id; `auto` and `cpu` are this machine, which is known without a file.

    Raises UnknownName, listing all names.
    """
    if name in (*ALIASES, here.id):
        return here
    table = known()
    if name not in table:
        raise UnknownName("platform", name, {*table, *ALIASES, here.id}, fix="`auto` takes this machine")
    return table[name]


def load(path: Path) -> Platform:
    """One platform file. Raises BadManifest with the file and the line or field."""
    try:
        text = read_text(path, str(path), fix="write it as a TOML file")
        entry = PlatformFile.model_validate(toml_of(text, str(path)))
    except ValidationError as error:
        raise told(str(path), error, PlatformFile) from error
    if entry.id != path.stem:
        raise BadManifest(
            f"{path}, field 'id'", f"'{entry.id}' is not the file's name", fix=f'write id = "{path.stem}"'
        )
    if "vector_bytes" not in entry.figures:
        raise BadManifest(f"{path}, field 'figures'", "vector_bytes is missing", fix="add [figures.vector_bytes]")
    return Platform(
        id=entry.id, readable=entry.readable, features=entry.features, source=entry.source, figures=entry.figures,
        vector_bytes=int(entry.figures["vector_bytes"].value),
        caches={level: int(entry.figures[level].value) for level in CACHE_LEVELS if level in entry.figures},
    )


@cache
def _shipped() -> dict[str, Platform]:
    return {path.stem: load(path) for path in sorted(DATA.glob("*.toml"))}
