"""What the workers of one sweep share: its study, where that is kept, and who has claimed what."""
