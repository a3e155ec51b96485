"""From a request to a report: one audit."""
