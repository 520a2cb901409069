"""Fixtures that several rooms share."""

pytest_plugins = ["tests.support.s3"]
