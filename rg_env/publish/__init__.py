"""Exports and uploads of trained models."""
