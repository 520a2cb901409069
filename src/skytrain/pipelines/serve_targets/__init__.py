"""Where a model can be served. A module of this package with a `TARGET` is one; see docs/extending.md."""
