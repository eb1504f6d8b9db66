"""First tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:

    op.create_table(
        "campaigns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stop_attempts", sa.Boolean(), nullable=False),
        sa.Column("submitted", sa.Float(), nullable=False),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("campaign_text", sa.Text(), nullable=False),
        sa.Column("lab_text", sa.Text(), nullable=False),
        sa.Column("campaign_document", sa.Text(), nullable=False),
        sa.Column("lab_document", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
    )
    with op.batch_alter_table("campaigns", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_campaigns_state"), ["state"], unique=False)

    op.create_table(
        "store_info",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_store_info")),
    )
    op.create_table(
        "cells",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("cell", sa.String(length=12), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("levels", sa.Text(), nullable=False),
        sa.Column("applicable", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_cells_campaign_id_campaigns")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cells")),
        sa.UniqueConstraint("campaign_id", "cell", name=op.f("uq_cells_campaign_id_cell")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("replicate", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("accepted_attempt", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_runs_campaign_id_campaigns")),
        sa.ForeignKeyConstraint(["cell_id"], ["cells.id"], name=op.f("fk_runs_cell_id_cells")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("cell_id", "replicate", name=op.f("uq_runs_cell_id_replicate")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_next", ["campaign_id", "state", "sequence"], unique=False)

    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("order_document", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("claimed", sa.Float(), nullable=True),
        sa.Column("heartbeat", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("result_document", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_attempts_campaign_id_campaigns")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "number", name=op.f("uq_attempts_run_id_number")),
        sa.UniqueConstraint("token", name=op.f("uq_attempts_token")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_campaign_id"), ["campaign_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempts_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempts_state"), ["state"], unique=False)

    op.create_table(
        "leases",
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("taken", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_leases_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("lab", "resource", name=op.f("pk_leases")),
    )
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_leases_attempt_id"), ["attempt_id"], unique=False)

    op.create_table(
        "raw_outputs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_raw_outputs_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_raw_outputs")),
    )
    with op.batch_alter_table("raw_outputs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_raw_outputs_attempt_id"), ["attempt_id"], unique=False)

    op.create_table(
        "vms",
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lab", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("campaign_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("mac", sa.String(length=17), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("migrations", sa.Integer(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("gone", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_vms_attempt_id_attempts")),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_vms_campaign_id_campaigns")),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_vms")),
    )
    with op.batch_alter_table("vms", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_vms_attempt_id"), ["attempt_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_vms_campaign_id"), ["campaign_id"], unique=False)
        batch_op.create_index("ix_vms_live", ["lab", "state"], unique=False)


def downgrade() -> None:

    with op.batch_alter_table("vms", schema=None) as batch_op:
        batch_op.drop_index("ix_vms_live")
        batch_op.drop_index(batch_op.f("ix_vms_campaign_id"))
        batch_op.drop_index(batch_op.f("ix_vms_attempt_id"))

    op.drop_table("vms")
    with op.batch_alter_table("raw_outputs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_raw_outputs_attempt_id"))

    op.drop_table("raw_outputs")
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_leases_attempt_id"))

    op.drop_table("leases")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempts_state"))
        batch_op.drop_index(batch_op.f("ix_attempts_run_id"))
        batch_op.drop_index(batch_op.f("ix_attempts_campaign_id"))

    op.drop_table("attempts")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_next")

    op.drop_table("runs")
    op.drop_table("cells")
    op.drop_table("store_info")
    with op.batch_alter_table("campaigns", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_campaigns_state"))

    op.drop_table("campaigns")
