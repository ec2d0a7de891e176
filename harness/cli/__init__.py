"""The command `harness`: one module a subcommand."""
