"""The base class of every table of a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """One table of the file: no unknown keys, no conversions between types, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
