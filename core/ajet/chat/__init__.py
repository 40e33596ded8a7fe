"""Messages to tokens and back, by the model's own chat template.

`renderer.Chat` takes messages in the normal form of `messages` and returns prompt ids; it reads sampled ids as a message.
Prompts: `template` and `jinja` write chats as text, `encoding` makes tokens of it, `continuing` finds what a longer chat adds
to a prompt whose ids are stored; `library` writes the chats of models without a template. Answers: `shape` finds what
surrounds one, `reading` finds how its tool calls are written (`derive`, `calls`, `bodies`), `answers` and `harmony` read it.
"""
