"""Gymnasium's vector environments: one simulator that steps many environments by one call."""
