"""Approval gates of the model registry: policy, evidence and enforcement as one chain."""
