"""An index of when traces were rated, for the studio."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make it."""
    given = sa.text("rated_at IS NOT NULL")
    op.create_index("traces_rated_at", "traces", ["rated_at"], sqlite_where=given, postgresql_where=given)
