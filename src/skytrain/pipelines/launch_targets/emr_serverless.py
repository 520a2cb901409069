"""Spark jobs on EMR Serverless: they prepare data."""

from __future__ import annotations

from .emr import EmrLauncher

TARGET = EmrLauncher("emr-serverless")
