"""``python -m ajet`` is the program ``ajet``."""

from ajet.cli import main

main()
