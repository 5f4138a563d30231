"""Our Decision Transformer against Hugging Face's, with copied weights."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


def test_loss_and_gradient_equal_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="only the peers' environment has transformers")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    found = importlib.import_module("decision_transformer").check()
    for name, (ours, theirs) in found.items():
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5), name
