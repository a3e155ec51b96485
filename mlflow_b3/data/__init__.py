"""Tables, folds and losses: what an audit is given."""
