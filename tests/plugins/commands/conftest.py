"""What these tests share with those of the commands."""

from tests.cli.conftest import folder  # noqa: F401
