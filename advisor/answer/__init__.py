"""Types of an answer: what an evaluation gave, and what is advised."""
