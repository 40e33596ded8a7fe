"""A user's folder whose answers come from a script."""

from tests.cli.conftest import folder  # noqa: F401
