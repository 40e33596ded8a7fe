"""An index of the lists of tools that traces have, by which those of deleted traces are found."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make it."""
    given = sa.text("tools IS NOT NULL")
    op.create_index("traces_tools", "traces", ["tools"], sqlite_where=given, postgresql_where=given)
