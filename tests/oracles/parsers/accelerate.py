"""accelerate launch: its parser, and the file that it is given; nothing is replaced."""

from tempfile import NamedTemporaryFile


def accept(question: str) -> None:
    """Raise what the program raises on a file."""
    from accelerate.commands import launch
    from accelerate.commands.config.config_args import load_config_from_file

    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(question.partition("\n")[2])
        file.flush()
        load_config_from_file(file.name)
        args = launch.launch_command_parser().parse_args(["--config_file", file.name, "train.py"])
        launch._validate_launch_command(args)
