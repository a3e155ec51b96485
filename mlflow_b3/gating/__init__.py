"""Gates of the model registry: verdicts, verification, attestation and the server's enforcement."""
