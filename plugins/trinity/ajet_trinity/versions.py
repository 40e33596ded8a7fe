"""The versions of Trinity and of what it needs that were tested."""

from __future__ import annotations

from ajet_foreign.versions import Needed, Requirements

NEEDED = (
    Needed("trinity-rft", ("0.6.0",), "pip install trinity-rft==0.6.0", exact=True),
    Needed("verl", ("0.8.0",), "pip install verl==0.8.0", exact=True),
    Needed("ray", ("2.60",), "pip install 'ray[default]==2.60.0'"),
    Needed("transformers", ("5.23",), "pip install transformers==5.23.0"),
    Needed("tensordict", ("0.10",), "pip install tensordict==0.10.0"),
    Needed("numpy", ("2",), "pip install 'numpy>=2' after the others, as verl 0.8 asks for an older one"),
    # Trinity imports these without naming them in its requirements.
    Needed("greenlet", (), "pip install greenlet"),
    Needed("fastapi", (), "pip install fastapi"),
    Needed("cachetools", (), "pip install cachetools"),
)
"""The tested versions ran on a CPU (`make test-trinity`)."""
REQUIREMENTS = Requirements("trinity", NEEDED, prefix="trinity: ")
check, findings = REQUIREMENTS.check, REQUIREMENTS.findings
