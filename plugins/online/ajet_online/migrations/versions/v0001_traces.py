"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "tools",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("id", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("trainer", sa.Text, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )
    op.create_table(
        "traces",
        sa.Column("number", NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("conversation", sa.String(64), nullable=False),
        sa.Column("parent", sa.String(64)),
        sa.Column("chat", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("prompt", sa.LargeBinary, nullable=False),
        sa.Column("tokens", sa.LargeBinary, nullable=False),
        sa.Column("logprobs", sa.LargeBinary, nullable=False),
        sa.Column("versions", sa.LargeBinary),
        sa.Column("temperature", sa.Double, nullable=False),
        sa.Column("trained", sa.Boolean, nullable=False),
        sa.Column("finish_reason", sa.String(16), nullable=False),
        sa.Column("messages", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("tools", sa.String(64), sa.ForeignKey("tools.hash")),
        sa.Column("state", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("task_id", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("reward", sa.Double),
        sa.Column("comment", sa.Text),
        sa.Column("correction", sa.Text),
        sa.Column("rated_at", sa.Double),
        sa.Column("lease", NUMBER, sa.ForeignKey("leases.id")),
        sa.Column("step", sa.Integer),
        sa.Column("reason", sa.Text),
    )
    op.create_index("traces_conversation", "traces", ["conversation"])
    op.create_index("traces_chat", "traces", ["key", "chat"])
    op.create_index("traces_status", "traces", ["state", "version", "reward"])
    for name, columns, state in (
        ("traces_rated", ["task_id", "run_id"], 1),
        ("traces_ready", ["number"], 2),
        ("traces_ready_tasks", ["task_id"], 2),
        ("traces_leased", ["lease"], 3),
    ):
        where = sa.text(f"state = {state}")
        op.create_index(name, "traces", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "facts",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
