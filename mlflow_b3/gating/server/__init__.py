"""The gate inside of MLflow's server."""
