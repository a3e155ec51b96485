"""What an audit proves and what a policy asks. Nothing here knows MLflow."""
