"""A folder in which a newcomer trains an agent: `ajet new`.

`templates/` has what is written, with ``«name»`` in place of what differs. `project.py` fills it in, and `found.py` finds out what an
agent that is already there (``--from``) needs around it. Importing this package imports none of this.
"""
