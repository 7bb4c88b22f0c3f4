"""The one place that maps the root folders to the import name `kernelcrew`."""

from setuptools import find_packages, setup

ROOMS = ("platforms", "kernels", "tools", "memory", "agents", "runs")

setup(
    package_dir={"kernelcrew": "base", **{f"kernelcrew.{room}": room for room in ROOMS}},
    packages=[
        "kernelcrew",
        *(f"kernelcrew.{room}" for room in ROOMS),
        *(f"kernelcrew.{room}.{package}" for room in ROOMS for package in find_packages(room)),
    ],
    package_data={
        "": ["py.typed", "**/*.md", "**/*.toml", "**/*.c", "**/*.h", "**/*.json", "**/*.j2", "**/*.css", "**/LICENSE*"],
        "kernelcrew.kernels": ["*/*.py"],  # an operator's reference stands in its folder, which is no package
        "kernelcrew.runs": ["templates/operator/*"],  # what `kernelcrew init` writes
    },
    exclude_package_data={"kernelcrew.runs": ["evidence/*/*"]},  # recorded runs stand in a checkout
)
