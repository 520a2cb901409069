"""Machines rented from EC2: Auto Scaling groups that `launch` creates, and endpoints on one machine."""
