"""Versions of the weights, and names of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make them."""
    op.add_column("traces", sa.Column("run", sa.String(128)))
    named = sa.text("run IS NOT NULL")
    op.create_index("traces_run", "traces", ["run"], sqlite_where=named, postgresql_where=named)
    rated = sa.text("reward IS NOT NULL")
    op.create_index(
        "traces_ratings", "traces", ["version", "reward"], sqlite_where=rated, postgresql_where=rated
    )
    op.create_table(
        "versions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("parent", sa.Integer),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("stage", sa.SmallInteger, nullable=False),
        sa.Column("lease", NUMBER),
        sa.Column("reward", sa.Double),
        sa.Column("report", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("at", sa.Double, nullable=False),
    )
