"""Alembic runs this for each migration, on the connection that `ajet_online.database` gives it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
