"""torchtitan's ConfigManager, given a file."""

from tempfile import NamedTemporaryFile

from . import torchtitan


def accept(question: str) -> None:
    """Raise what the program raises on a file."""
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(question.partition("\n")[2])
        file.flush()
        torchtitan.accept(f"\n--job.config_file={file.name}")
