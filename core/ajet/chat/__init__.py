"""Messages to tokens and back, by the model's own chat template.

`renderer.Chat` takes messages in the normal form of `messages` and returns prompt ids; it reads sampled ids as a message.
`continuing` finds what a longer chat adds to a prompt whose ids are stored, by the proof of `incremental` and `proof` where
a template allows one. `families`, `templates` and `harmony` know the formats; `streaming` reads an answer while it is sampled.
"""
