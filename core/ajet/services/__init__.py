"""Programs and models that a run uses.

`supervisor` starts, watches and stops the services that a job names. `llm_client` asks a model for judges and readers,
`answers` keeps what was paid for, `chat_models` answers calls to frozen targets, `scripted_engine` answers from a script.
"""
