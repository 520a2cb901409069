"""Spark jobs on a cluster of EMR and on EMR Serverless."""

NAMES = ("emr", "emr-serverless")
