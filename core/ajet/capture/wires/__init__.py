"""The built-in wires: one file for each HTTP format of LLM requests, behind the protocol of `ajet.interfaces.wire`."""
