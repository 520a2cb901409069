"""Endpoints on this machine."""
