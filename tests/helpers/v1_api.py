"""Verifiers' v1 API. Modules that import this one are skipped if the installed release lacks that API."""

import pytest

__all__ = ["vf"]

vf = pytest.importorskip("verifiers.v1", reason="needs Verifiers 0.2 or newer")
