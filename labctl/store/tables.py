"""The tables. Times are seconds since the Unix epoch; documents are JSON text of model values.

One campaign has cells; a cell has runs (its replicates); a run has attempts, of which at most one result is accepted.
A lease is a row: whoever has the row has the host. A VM is recorded before it is created and marked gone after it was
destroyed, so that whatever a crash leaves behind is known. Whatever the engine asks often is kept beside what it is
computed from (tries of a run, seconds of a cell, share of a campaign), so that the cost of a run doesn't grow with their
number; each such figure is written in the transaction that changes what it stands for.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


store_info = Table(
    "store_info",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("lab", Text, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("stop_attempts", Boolean, nullable=False, default=False),
    Column("submitted", Float, nullable=False),
    Column("started", Float),
    Column("ended", Float),
    Column("versions", Text, nullable=False),
    Column("digest", String(64), nullable=False, default="", index=True),
    Column("purpose", String(16), nullable=False, default="measure"),
    Column("priority", Integer, nullable=False, default=0),
    Column("share", Float, nullable=False, default=0.0),
    Column("why", Text, nullable=False, default=""),
    Column("hold", Text, nullable=False, default=""),
    Column("forgiven", Integer, nullable=False, default=0),
    Column("added", Float, nullable=False, default=0.0),
)

documents = Table(
    "documents",
    metadata,
    Column("campaign_id", ForeignKey("campaigns.id"), primary_key=True),
    Column("campaign_text", Text, nullable=False),
    Column("lab_text", Text, nullable=False),
    Column("campaign_document", Text, nullable=False),
    Column("lab_document", Text, nullable=False),
)
"""The files of a campaign. They never change and may be large: those of a large lab beside its state, every start of a run
would write them anew."""

cells = Table(
    "cells",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("campaign_id", ForeignKey("campaigns.id"), nullable=False),
    Column("cell", String(12), nullable=False),
    Column("position", Integer, nullable=False),
    Column("levels", Text, nullable=False),
    Column("applicable", Boolean, nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("timed", Integer, nullable=False, default=0),
    Column("seconds", Float, nullable=False, default=0.0),
    UniqueConstraint("campaign_id", "cell"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("campaign_id", ForeignKey("campaigns.id"), nullable=False),
    Column("cell_id", ForeignKey("cells.id"), nullable=False),
    Column("replicate", Integer, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("outcome", String(16)),
    Column("accepted_attempt", Integer),
    Column("purpose", String(16), nullable=False, default="measure"),
    Column("tries", Integer, nullable=False, default=0),
    Column("retried", Boolean, nullable=False, default=False),
    Column("not_before", Float, nullable=False, default=0.0),
    Column("detail", Text),
    UniqueConstraint("cell_id", "replicate"),
    Index("ix_runs_next", "campaign_id", "state", "retried", "sequence"),
    _partial_index("ix_runs_waiting", "campaign_id", "not_before", where="not_before > 0"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("campaign_id", ForeignKey("campaigns.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("token", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("hosts", Text, nullable=False, default=""),
    Column("estimate", Float, nullable=False, default=0.0),
    Column("claim_by", Float),
    Column("beats", Integer, nullable=False, default=0),
    Column("blamed", Text, nullable=False, default=""),
    Column("order_document", Text, nullable=False),
    Column("worker", Text, nullable=False, default=""),
    Column("phase", Text, nullable=False, default=""),
    Column("created", Float, nullable=False),
    Column("claimed", Float),
    Column("heartbeat", Float),
    Column("ended", Float),
    Column("outcome", String(16)),
    Column("kind", Text),
    Column("result_document", Text),
    UniqueConstraint("run_id", "number"),
    Index("ix_attempts_state_campaign_id", "state", "campaign_id"),
    Index("ix_attempts_campaign_id_outcome", "campaign_id", "outcome"),
)

leases = Table(
    "leases",
    metadata,
    Column("lab", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, index=True),
    Column("token", String(32), nullable=False),
    Column("taken", Float, nullable=False),
    Column("expected", Float, nullable=False, default=0.0),
)

vms = Table(
    "vms",
    metadata,
    Column("uuid", String(36), primary_key=True),
    Column("name", Text, nullable=False),
    Column("lab", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("campaign_id", ForeignKey("campaigns.id"), nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, index=True),
    Column("role", String(16), nullable=False),
    Column("mac", String(17), nullable=False),
    Column("address", Text, nullable=False),
    Column("shape", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("migrations", Integer, nullable=False, default=0),
    Column("created", Float, nullable=False),
    Column("gone", Float),
    _partial_index("ix_vms_there", "lab", "address", where="state <> 'gone'"),
    _partial_index("ix_vms_of_campaign", "campaign_id", where="state <> 'gone'"),
)

adjustments = Table(
    "adjustments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("lab", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("adapter", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("before", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, index=True),
    Column("recorded", Float, nullable=False),
    Column("taken", Float),
    Column("restored", Float),
    Column("why", Text, nullable=False, default=""),
    _partial_index("ix_adjustments_open", "lab", "host", "adapter", "name", where="restored IS NULL", unique=True),
)
"""Settings of hosts that attempts have changed, recorded before they are changed, with what they were before. One that is
not restored yet is open; of each setting at most one is."""

raw_outputs = Table(
    "raw_outputs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("content", LargeBinary),
    Column("pruned", Float),
)

hosts = Table(
    "hosts",
    metadata,
    Column("lab", Text, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("strikes", Integer, nullable=False, default=0),
    Column("why", Text, nullable=False, default=""),
    Column("since", Float, nullable=False),
    Column("checks", Integer, nullable=False, default=0),
    Column("next_check", Float, nullable=False, default=0.0),
)

workers = Table(
    "workers",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("machine", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("queues", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started", Float, nullable=False),
    Column("beats", Integer, nullable=False, default=0),
    Column("seen", Float, nullable=False),
    Column("doing", Text, nullable=False, default=""),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("key", String(255), nullable=False),
    Column("campaign_id", ForeignKey("campaigns.id"), index=True),
    Column("kind", String(32), nullable=False),
    Column("what", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("told", Boolean, nullable=False, default=False, index=True),
    UniqueConstraint("scope", "key"),
)

# What partial indices hold. Queries say it in these words, written out, else the indices are not used.
THERE = vms.c.state != literal_column("'gone'")
"""Of a VM: it may still exist."""
OPEN = adjustments.c.restored.is_(None)
"""Of an adjustment: its setting may not be what it was before."""
BACKING_OFF = runs.c.not_before > literal_column("0")
"""Of a run: it may have to wait before it is tried again."""
