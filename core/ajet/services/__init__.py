"""Programs and models beside a run.

`supervisor` starts, watches and stops the services that a job names. `llm_client` asks a model for judges and readers,
`chat_models` answers for frozen targets, `command_workflow` runs an agent that is a command.
"""
