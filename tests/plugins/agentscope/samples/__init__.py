"""Programs in the shape of AgentScope's own samples of its tuner: the same calls, arguments, configuration files and imports, but
one: `ajet_agentscope.tuner`. Their models are small, and named by the variables SAMPLE_MODEL and SAMPLE_URL."""
