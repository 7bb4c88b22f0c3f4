"""kernelcrew: a team of role-specialised agents that makes compute kernels faster and proves it."""

from kernelcrew.version import VERSION as __version__

__all__ = ["__version__"]
