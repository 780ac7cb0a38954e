"""Which folder of the checkout becomes which package. Everything else about the distribution is in pyproject.toml.

The checkout has harness/, tasks/, configs/ and results/reference/ at its root, where editors, mypy and tests find them.
A wheel has all of them inside gatedeval_app/, so that it puts one name on the path of those who install it.
"""

from setuptools import find_packages, setup

DATA = ["configs", "results", "results.reference"]
inside = {
    f"gatedeval_app.{name}": name.replace(".", "/")
    for name in [*find_packages(include=["harness", "harness.*", "tasks", "tasks.*"]), *DATA]
}

setup(packages=["gatedeval_app", *inside], package_dir=inside)
