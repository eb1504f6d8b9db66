"""Adjustments: settings of hosts that attempts change, and what they were before"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "adjustments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("recorded", sa.Float(), nullable=False),
        sa.Column("taken", sa.Float(), nullable=True),
        sa.Column("restored", sa.Float(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_adjustments_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adjustments")),
    )
    op.create_index(op.f("ix_adjustments_attempt_id"), "adjustments", ["attempt_id"])
    op.create_index(
        "ix_adjustments_open",
        "adjustments",
        ["lab", "host", "adapter", "name"],
        unique=True,
        sqlite_where=sa.text("restored IS NULL"),
        postgresql_where=sa.text("restored IS NULL"),
    )
