"""The command `harness`: one module per subcommand."""
