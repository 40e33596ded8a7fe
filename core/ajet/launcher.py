"""``python -m ajet.launcher``: how the earlier AgentJet was started, also by launch configurations of editors. It is ``ajet``."""

from ajet.cli import main

if __name__ == "__main__":
    main()
