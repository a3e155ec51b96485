"""The inputs of an audit: tables, folds and losses."""
