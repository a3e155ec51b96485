"""From measured losses to the loss on new clusters."""
