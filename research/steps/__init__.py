"""Constants of the time model fitted on whole published steps, and how right they are."""
