"""``python -m ajet.launcher``: how the earlier AgentJet was started, also by launch configurations of editors. It is ``ajet``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("ajet", run_name="__main__")
