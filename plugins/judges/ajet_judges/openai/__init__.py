"""Graders of OpenAI's fine-tuning as a judge. `graders` has their fields, `templates` and `formula` their two small languages, the
other modules how they grade, and `judge` puts them together."""
