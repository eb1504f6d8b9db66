"""Unattended nights: priorities, tries, hosts, workers, events"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("campaigns") as table:
        table.add_column(sa.Column("digest", sa.String(64), nullable=False, server_default=""))
        table.add_column(sa.Column("purpose", sa.String(16), nullable=False, server_default="measure"))
        table.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("share", sa.Float(), nullable=False, server_default="0"))
        table.add_column(sa.Column("why", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("hold", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("forgiven", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("added", sa.Float(), nullable=False, server_default="0"))
        table.create_index(op.f("ix_campaigns_digest"), ["digest"])
    with op.batch_alter_table("cells") as table:
        table.add_column(sa.Column("timed", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("seconds", sa.Float(), nullable=False, server_default="0"))
    with op.batch_alter_table("runs") as table:
        table.drop_index("ix_runs_next")
        table.add_column(sa.Column("purpose", sa.String(16), nullable=False, server_default="measure"))
        table.add_column(sa.Column("tries", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("retried", sa.Boolean(), nullable=False, server_default=sa.false()))
        table.add_column(sa.Column("not_before", sa.Float(), nullable=False, server_default="0"))
        table.add_column(sa.Column("detail", sa.Text(), nullable=True))
        table.create_index("ix_runs_next", ["campaign_id", "state", "retried", "sequence"])
    _partial_index("ix_runs_waiting", "runs", ["campaign_id", "not_before"], where="not_before > 0")
    with op.batch_alter_table("attempts") as table:
        table.drop_index("ix_attempts_state")
        table.drop_index("ix_attempts_campaign_id")
        table.drop_index("ix_attempts_run_id")
        table.drop_constraint("uq_attempts_token", type_="unique")
        table.add_column(sa.Column("hosts", sa.Text(), nullable=False, server_default=""))
        table.add_column(sa.Column("estimate", sa.Float(), nullable=False, server_default="0"))
        table.add_column(sa.Column("claim_by", sa.Float(), nullable=True))
        table.add_column(sa.Column("beats", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("blamed", sa.Text(), nullable=False, server_default=""))
        table.create_index("ix_attempts_state_campaign_id", ["state", "campaign_id"])
        table.create_index("ix_attempts_campaign_id_outcome", ["campaign_id", "outcome"])
    with op.batch_alter_table("leases") as table:
        table.add_column(sa.Column("expected", sa.Float(), nullable=False, server_default="0"))
    with op.batch_alter_table("raw_outputs") as table:
        table.alter_column("content", existing_type=sa.LargeBinary(), nullable=True)
        table.add_column(sa.Column("pruned", sa.Float(), nullable=True))
    with op.batch_alter_table("vms") as table:
        table.drop_index("ix_vms_live")
        table.drop_index("ix_vms_campaign_id")
    _partial_index("ix_vms_there", "vms", ["lab", "address"], where="state <> 'gone'")
    _partial_index("ix_vms_of_campaign", "vms", ["campaign_id"], where="state <> 'gone'")
    _count_tries()
    _move_documents()
    op.create_table(
        "hosts",
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("checks", sa.Integer(), nullable=False),
        sa.Column("next_check", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("lab", "host", name=op.f("pk_hosts")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("beats", sa.Integer(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("doing", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_events_campaign_id_campaigns")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("scope", "key", name=op.f("uq_events_scope_key")),
    )
    with op.batch_alter_table("events") as table:
        table.create_index(op.f("ix_events_campaign_id"), ["campaign_id"])
        table.create_index(op.f("ix_events_told"), ["told"])


def _partial_index(name: str, table: str, columns: list[str], *, where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _move_documents() -> None:
    names = ("campaign_text", "lab_text", "campaign_document", "lab_document")
    op.create_table(
        "documents",
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in names),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_documents_campaign_id_campaigns")),
        sa.PrimaryKeyConstraint("campaign_id", name=op.f("pk_documents")),
    )
    op.execute(
        "INSERT INTO documents (campaign_id, campaign_text, lab_text, campaign_document, lab_document) "
        "SELECT id, campaign_text, lab_text, campaign_document, lab_document FROM campaigns"
    )
    with op.batch_alter_table("campaigns") as table:
        for name in names:
            table.drop_column(name)


def _count_tries() -> None:
    op.execute(
        "UPDATE runs SET tries = (SELECT count(*) FROM attempts WHERE attempts.run_id = runs.id "
        "AND (attempts.outcome IS NULL OR attempts.outcome != 'cancelled'))"
    )
    retried = sa.sql.table("runs", sa.column("retried", sa.Boolean()), sa.column("tries", sa.Integer()))
    op.execute(retried.update().where(retried.c.tries > 0).values(retried=sa.true()))
