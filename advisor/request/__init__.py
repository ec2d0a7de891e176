"""A request becomes a job: what is given, what a recipe lends, what is assumed."""
