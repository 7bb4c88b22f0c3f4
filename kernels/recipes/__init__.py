"""Recipes: named rewrites of a kernel's source, as pure functions from a parsed source to a source or to why not.

`RECIPES` is the catalogue. A rewrite edits code it finds by its form; a template is a prepared piece of kernel with
parameters, and is labelled so. Each puts a comment naming itself and its reason where it changes the source.
"""

from kernelcrew.kernels.recipes import loops, rows, vectors
from kernelcrew.kernels.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {r.name: r for r in (*loops.RECIPES, *vectors.RECIPES, *rows.RECIPES)}
"""By name, in the order in which they are usually tried."""

__all__ = ["RECIPES", "Recipe"]
