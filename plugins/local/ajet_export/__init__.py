"""The command `ajet export`, for every backbone that exports. Importing it imports no backbone, so that `ajet --help` is quick."""
