"""Decides requests by IAM's documented logic, so that permissions can be proven without an account.

`policy`: statements, conditions and variables. `requests`: which permissions a call to AWS needs.
"""
