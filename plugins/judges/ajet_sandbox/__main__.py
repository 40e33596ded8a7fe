"""Started by path, in isolated mode (``python -I -S …/ajet_sandbox/__main__.py``), so only the standard library is on the
path before this package."""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ajet_sandbox.launcher import main

main()
