"""Recipes: named rewrites of a kernel's source, as pure functions from a parsed source to a source or to why not.

`RECIPES` is the catalogue. A rewrite edits code it finds by its form; a template is a prepared piece of kernel with
parameters, and is labelled so. Each puts a comment naming itself and its reason where it changes the source.
"""

from kernelcrew.kernels.recipes import attention, columns, generic, loops, matmul, rows, vectors
from kernelcrew.kernels.recipes.recipe import Recipe

_FAMILIES = (loops, vectors, rows, matmul, columns, attention, generic)
RECIPES: dict[str, Recipe] = {r.name: r for family in _FAMILIES for r in family.RECIPES}
"""By name, in the order in which they are usually tried."""

__all__ = ["RECIPES", "Recipe"]
